// SPDX-License-Identifier: Apache-2.0
#include "tests/attention_service/rank_world.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "attention_service/exchange_shape.h"
#include "moebius/transport/loopback/loopback.h"

namespace moebius::testing {
namespace {

constexpr int64_t kRowBudget = 1024;

std::optional<int32_t> RankNamed(const std::string& name) {
  const std::string prefix = "attention-";
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  return std::stoi(name.substr(prefix.size()));
}

}  // namespace

std::unique_ptr<LinkProvider> MakeLoopback(Reactor& reactor) {
  return std::make_unique<LoopbackProvider>(reactor);
}

TransportOptions RankTransportOptions(const std::string& name, const AttentionCase& model,
                                      uint64_t frame_bytes) {
  TransportOptions options;
  options.name = name;
  options.limits.max_payload_bytes = static_cast<uint32_t>(frame_bytes);
  options.window_bytes.fill(WindowBytesOf(frame_bytes));
  options.limits.max_message_bytes = 1 << 20;
  options.limits.max_metadata_bytes = 1 << 20;  // a probe
  options.limits.max_num_rows = kRowBudget;
  options.limits.max_row_width = static_cast<uint32_t>(model.facts.hidden_size);
  options.limits.max_layer = 60;
  options.limits = ExchangeShape::Of(model.facts, 1, kRowBudget).Widen(options.limits);
  return options;
}

void NamedRanks::OnPeerState(const PeerInfo& peer) {
  MutexLock lock(mutex_);
  const auto known = peers_.find(peer.name);
  if (peer.state == PeerState::kConnected) {
    peers_[peer.name] = peer.id;
  } else if (peer.state == PeerState::kDead && known != peers_.end() && known->second == peer.id) {
    peers_.erase(known);
  }
  ++version_;
  for (const auto& [id, listener] : listeners_) listener();
}

std::optional<PeerId> NamedRanks::AttentionPeer(int32_t rank) const {
  MutexLock lock(mutex_);
  const auto found = peers_.find(absl::StrCat("attention-", rank));
  if (found == peers_.end()) return std::nullopt;
  return found->second;
}

uint64_t NamedRanks::version() const {
  MutexLock lock(mutex_);
  return version_;
}

PeerDirectory::ListenerId NamedRanks::AddListener(std::function<void()> on_change) {
  MutexLock lock(mutex_);
  const ListenerId id = listeners_.empty() ? 1 : listeners_.rbegin()->first + 1;
  listeners_[id] = std::move(on_change);
  return id;
}

void NamedRanks::RemoveListener(ListenerId id) {
  MutexLock lock(mutex_);
  listeners_.erase(id);
}

RankProcess::RankProcess(const AttentionCase& model, const Place& place, LinkProvider& provider,
                         Reactor& reactor) {
  const std::string name = absl::StrCat("attention-", place.rank);
  transport_ = *Transport::Make(RankTransportOptions(name, model, place.frame_bytes), provider,
                                reactor, *this);
  Sharding sharding{.shard = {place.rank, place.num_ranks}};
  if (place.num_ranks > 1) {
    exchange_ = std::make_unique<PeerExchange>(
        PeerExchange::Options{.shard = sharding.shard,
                              .shape = ExchangeShape::Of(model.facts, place.num_ranks, kRowBudget)},
        *transport_, Clock::Monotonic());
    EXPECT_TRUE(exchange_->Start().ok());
    sharding.exchange = exchange_.get();
  }
  pipeline_ = MakePipeline(model, BestKernels(), executor_, 4096, sharding);
  rank_ =
      std::make_unique<AttentionRank>(AttentionRank::Options{.hidden_size = model.facts.hidden_size,
                                                             .row_budget = kRowBudget,
                                                             .kernel_flops = kKernelFlops},
                                      *pipeline_, exchange_.get(), *transport_);
  EXPECT_TRUE(rank_->Start().ok());
  {
    MutexLock lock(mutex_);
    is_ready_ = true;
    for (const PeerInfo& peer : early_) Tell(peer);
  }
  address_ = *transport_->Listen(place.listen);
  EXPECT_TRUE(transport_->Connect(place.router).ok());
  for (const Address& lower : place.lower_ranks) EXPECT_TRUE(transport_->Connect(lower).ok());
}

RankProcess::~RankProcess() {
  {
    MutexLock lock(mutex_);
    is_ready_ = false;
  }
  rank_.reset();
  pipeline_.reset();
  exchange_.reset();
  transport_.reset();
}

void RankProcess::OnPeerState(const PeerInfo& peer) {
  MutexLock lock(mutex_);
  if (is_ready_) Tell(peer);
}

void RankProcess::Tell(const PeerInfo& peer) {
  const std::optional<int32_t> other = RankNamed(peer.name);
  if (peer.state == PeerState::kConnected) {
    if (peer.name == "router") rank_->OnRouterUp(peer.id);
    if (other.has_value()) exchange_->SetPeer(*other, peer.id);
  } else if (peer.state == PeerState::kDead) {
    if (peer.name == "router") rank_->OnRouterDown(peer.id);
    if (other.has_value()) exchange_->SetPeer(*other, std::nullopt);
  }
}

RankWorld::RankWorld(const AttentionCase& model, int32_t num_ranks,
                     std::optional<AttentionMethod> method, const Links& links)
    : model_(model), frame_bytes_(links.frame_bytes), provider_(links.make(reactor_)) {
  router_ = *Transport::Make(RankTransportOptions("router", model, frame_bytes_), *provider_,
                             reactor_, directory_);
  router_address_ = *router_->Listen({"127.0.0.1", 0});
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    plans_.push_back(std::make_unique<FaultPlan>(static_cast<uint64_t>(rank)));
    faulty_.push_back(std::make_unique<FaultyProvider>(*provider_, *plans_.back(), reactor_));
  }
  ranks_.resize(static_cast<size_t>(num_ranks));
  for (int32_t rank = 0; rank < num_ranks; ++rank) Start(rank);
  const KvPool pool{.block_tokens = model.facts.key_block,
                    .num_blocks = 4096 / model.facts.key_block};
  port_ = std::make_unique<RemoteAttention>(
      RemoteAttention::Options{
          .num_ranks = num_ranks,
          .hidden_size = model.facts.hidden_size,
          .geometry = GeometryOf(model.facts, num_ranks),
          .pool = SharedKvPool(std::vector<KvPool>(static_cast<size_t>(num_ranks), pool),
                               GeometryOf(model.facts, num_ranks)),
          .method = {.forced = method}},
      *router_, directory_, Clock::Monotonic());
  EXPECT_TRUE(AllConnected());
}

RankWorld::~RankWorld() {
  port_.reset();
  ranks_.clear();
  router_.reset();
}

void RankWorld::Start(int32_t rank) {
  RankProcess::Place place{.rank = rank,
                           .num_ranks = num_ranks(),
                           .router = router_address_,
                           .frame_bytes = frame_bytes_};
  for (int32_t lower = 0; lower < rank; ++lower) {
    place.lower_ranks.push_back(this->rank(lower).address());
  }
  // A rank that comes back listens where others look for it.
  const auto known = addresses_.find(rank);
  if (known != addresses_.end()) place.listen = known->second;
  ranks_[static_cast<size_t>(rank)] =
      std::make_unique<RankProcess>(model_, place, *faulty_[static_cast<size_t>(rank)], reactor_);
  addresses_[rank] = this->rank(rank).address();
}

void RankWorld::KillRouter() {
  port_.reset();
  router_.reset();
}

bool RankWorld::AllConnected() {
  return Until([&] {
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      size_t connected = 0;
      for (const PeerInfo& peer : this->rank(rank).transport().peers()) {
        connected += peer.state == PeerState::kConnected ? 1 : 0;
      }
      if (connected < static_cast<size_t>(num_ranks()) || !directory_.IsAttentionUsable(rank)) {
        return false;
      }
    }
    return true;
  });
}

bool RankWorld::Until(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace moebius::testing
