// SPDX-License-Identifier: Apache-2.0
#include "attention_service/attention_participant.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "attention_service/attention_weights.h"
#include "attention_service/exchange_shape.h"
#include "attention_service/kernel_rate.h"
#include "moebius/base/status.h"
#include "moebius/transport/address.h"
#include "moebius/wire/greeting.h"

namespace moebius {
namespace {

// True where what is loaded serves the new slot too.
bool IsSameRank(const SlotAssignment& a, const SlotAssignment& b) {
  return a.index == b.index && a.count == b.count && a.row_budget == b.row_budget;
}

}  // namespace

AttentionParticipant::~AttentionParticipant() { Unload(); }

void AttentionParticipant::Unload() {
  std::unique_ptr<Loaded> loaded;
  {
    MutexLock lock(mutex_);
    loaded = std::move(loaded_);
  }
  // Outside the lock: the rank's end waits for its step.
}

absl::StatusOr<SlotReady> AttentionParticipant::Load(const SlotAssignment& slot,
                                                     const Progress& progress) {
  if (slot.role != Role::kAttention || slot.is_spare()) {
    return absl::InvalidArgumentError("the slot is no attention rank's");
  }
  if (slot.rank_addresses.size() != static_cast<size_t>(slot.count)) {
    return absl::InvalidArgumentError(absl::StrCat(slot.rank_addresses.size(), " addresses for ",
                                                   slot.count, " attention ranks"));
  }
  bool is_kept = false;
  {
    MutexLock lock(mutex_);
    is_kept = loaded_ != nullptr && IsSameRank(loaded_->slot, slot);
  }
  if (!is_kept) {
    Unload();  // its standing room makes way for the new one's
    MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Loaded> loaded, Open(slot, progress));
    MutexLock lock(mutex_);
    loaded_ = std::move(loaded);
    if (router_.has_value()) loaded_->rank->OnRouterUp(*router_);
  }
  MOEBIUS_RETURN_IF_ERROR(DialRanks(slot));
  MutexLock lock(mutex_);
  loaded_->slot = slot;
  TellPeers();
  return ReadyOf(*loaded_);
}

absl::StatusOr<std::unique_ptr<AttentionPipeline>> AttentionParticipant::LoadPipeline(
    const Sharding& sharding, const Progress& progress) const {
  const AttentionFacts facts = AttentionFactsOf(*options_.checkpoint);
  if (options_.mock_delay.has_value()) {
    return AttentionPipeline::MakeMock(facts, *options_.mock_delay, *options_.kernels,
                                       *options_.executor, options_.kv_budget_bytes,
                                       sharding.shard);
  }
  AttentionLoadOptions load;
  load.cache = options_.cache;
  load.on_loaded = [&](int64_t loaded_bytes, int64_t total_bytes) {
    progress(loaded_bytes, total_bytes);
    if (options_.on_progress) options_.on_progress(loaded_bytes, total_bytes);
  };
  return AttentionPipeline::Load(*options_.checkpoint, *options_.kernels, *options_.executor,
                                 options_.kv_budget_bytes, sharding, load);
}

// 0 where nobody asks: alone there is nothing to choose.
absl::StatusOr<double> AttentionParticipant::MeasureKernel(const AttentionFacts& facts,
                                                           const SlotAssignment& slot) const {
  if (!options_.measures_kernel || slot.count == 1) return 0;
  return MeasureKernelRate(facts, *options_.kernels, *options_.executor);
}

absl::StatusOr<std::unique_ptr<AttentionParticipant::Loaded>> AttentionParticipant::Open(
    const SlotAssignment& slot, const Progress& progress) {
  const AttentionFacts facts = AttentionFactsOf(*options_.checkpoint);
  auto loaded = std::make_unique<Loaded>();
  loaded->slot = slot;
  Sharding sharding{.shard = {slot.index, slot.count}};
  if (slot.count > 1 && !options_.mock_delay.has_value()) {
    loaded->exchange = std::make_unique<PeerExchange>(
        PeerExchange::Options{.shard = sharding.shard,
                              .shape = ExchangeShape::Of(facts, slot.count, slot.row_budget)},
        *transport_, Clock::Monotonic());
    MOEBIUS_RETURN_IF_ERROR(loaded->exchange->Start());
    sharding.exchange = loaded->exchange.get();
  }
  MOEBIUS_ASSIGN_OR_RETURN(loaded->pipeline, LoadPipeline(sharding, progress));
  if (options_.on_loaded) options_.on_loaded(loaded->pipeline->load_figures());
  MOEBIUS_ASSIGN_OR_RETURN(const double kernel_flops, MeasureKernel(facts, slot));
  loaded->rank =
      std::make_unique<AttentionRank>(AttentionRank::Options{.hidden_size = facts.hidden_size,
                                                             .row_budget = slot.row_budget,
                                                             .kernel_flops = kernel_flops},
                                      *loaded->pipeline, loaded->exchange.get(), *transport_);
  MOEBIUS_RETURN_IF_ERROR(loaded->rank->Start());
  return loaded;
}

// Ranks below the own one, where they are now; an empty address is of a rank that is not there yet.
absl::Status AttentionParticipant::DialRanks(const SlotAssignment& slot) {
  std::map<int32_t, Dialed> dialed;
  {
    MutexLock lock(mutex_);
    dialed = dialed_;
  }
  for (auto it = dialed.begin(); it != dialed.end();) {
    const auto& [rank, known] = *it;
    const bool is_right =
        rank < slot.index && slot.rank_addresses[static_cast<size_t>(rank)] == known.address;
    if (!is_right) {
      transport_->Disconnect(known.peer, absl::CancelledError("the rank is elsewhere now"));
    }
    it = is_right ? std::next(it) : dialed.erase(it);
  }
  absl::Status status;
  for (int32_t rank = 0; rank < slot.index && status.ok(); ++rank) {
    const std::string& text = slot.rank_addresses[static_cast<size_t>(rank)];
    if (text.empty() || dialed.contains(rank)) continue;
    const absl::StatusOr<Address> address = ParseAddress(text);
    status = address.status();
    if (!status.ok()) break;
    const absl::StatusOr<PeerId> peer = transport_->Connect(*address);
    status = peer.status();
    if (status.ok()) dialed[rank] = {text, *peer};
  }
  MutexLock lock(mutex_);
  dialed_ = std::move(dialed);
  return status;
}

SlotReady AttentionParticipant::ReadyOf(const Loaded& loaded) const {
  const KvUsage usage = loaded.pipeline->usage();
  const int64_t bytes = loaded.pipeline->weight_bytes();
  return {.phase = SlotPhase::kReady,
          .loaded_bytes = bytes,
          .total_bytes = bytes,
          .tier = options_.mock_delay.has_value() ? "mock"
                                                  : std::string(TierName(options_.kernels->tier)),
          .threads = options_.executor->num_threads(),
          .kv_block_tokens = usage.block_tokens,
          .kv_num_blocks = usage.num_blocks};
}

std::optional<int32_t> AttentionParticipant::RankOf(const PeerInfo& peer) const {
  for (const auto& [rank, dialed] : dialed_) {
    if (dialed.peer == peer.id) return rank;
  }
  const absl::StatusOr<Greeting> greeting = ParseGreeting(peer.greeting);
  if (peer.dialed || !greeting.ok() || greeting->role != Role::kAttention ||
      greeting->data_address.empty()) {
    return std::nullopt;
  }
  const std::vector<std::string>& addresses = loaded_->slot.rank_addresses;
  for (size_t rank = static_cast<size_t>(loaded_->slot.index) + 1; rank < addresses.size();
       ++rank) {
    if (addresses[rank] == greeting->data_address) return static_cast<int32_t>(rank);
  }
  return std::nullopt;
}

// Which peers the ranks are, by the present slot.
void AttentionParticipant::TellPeers() {
  if (loaded_ == nullptr || loaded_->exchange == nullptr) return;
  std::map<int32_t, PeerId> ranks;
  for (const auto& [id, peer] : peers_) {
    if (const std::optional<int32_t> rank = RankOf(peer)) ranks[*rank] = id;
  }
  for (int32_t rank = 0; rank < loaded_->slot.count; ++rank) {
    const auto found = ranks.find(rank);
    loaded_->exchange->SetPeer(
        rank, found == ranks.end() ? std::nullopt : std::optional<PeerId>(found->second));
  }
}

void AttentionParticipant::OnRouterUp(const PeerInfo& router) {
  MutexLock lock(mutex_);
  router_ = router.id;
  if (loaded_ != nullptr) loaded_->rank->OnRouterUp(router.id);
}

void AttentionParticipant::OnRouterDown(const PeerInfo& router) {
  MutexLock lock(mutex_);
  router_.reset();
  if (loaded_ != nullptr) loaded_->rank->OnRouterDown(router.id);
}

void AttentionParticipant::OnPeerState(const PeerInfo& peer) {
  MutexLock lock(mutex_);
  if (peer.state == PeerState::kConnected || peer.state == PeerState::kSuspect) {
    peers_[peer.id] = peer;
  } else {
    peers_.erase(peer.id);
  }
  TellPeers();
}

std::optional<RankFigures> AttentionParticipant::figures() const {
  MutexLock lock(mutex_);
  if (loaded_ == nullptr) return std::nullopt;
  return loaded_->rank->figures();
}

}  // namespace moebius
