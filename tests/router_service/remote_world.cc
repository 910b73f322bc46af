// SPDX-License-Identifier: Apache-2.0
#include "tests/router_service/remote_world.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

#include "moebius/wire/message_kind.h"

namespace moebius {

void NamedDirectory::OnPeerState(const PeerInfo& peer) {
  int32_t service = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(peer.name, "expert-"), &service)) return;
  MutexLock lock(mutex_);
  if (peer.state == PeerState::kDead) {
    experts_.erase(service);
  } else {
    experts_[service] = peer;
  }
  ++version_;
  for (const auto& [id, listener] : listeners_) listener();
}

std::optional<PeerId> NamedDirectory::ExpertPeer(ServiceId service) const {
  MutexLock lock(mutex_);
  const auto found = experts_.find(service.value());
  if (found == experts_.end()) return std::nullopt;
  return found->second.id;
}

bool NamedDirectory::IsExpertUsable(ServiceId service) const {
  MutexLock lock(mutex_);
  const auto found = experts_.find(service.value());
  return found != experts_.end() && found->second.state == PeerState::kConnected;
}

uint64_t NamedDirectory::version() const {
  MutexLock lock(mutex_);
  return version_;
}

PeerDirectory::ListenerId NamedDirectory::AddListener(std::function<void()> on_change) {
  MutexLock lock(mutex_);
  const ListenerId id = listeners_.empty() ? 1 : listeners_.rbegin()->first + 1;
  listeners_[id] = std::move(on_change);
  return id;
}

void NamedDirectory::RemoveListener(ListenerId id) {
  MutexLock lock(mutex_);
  listeners_.erase(id);
}

NonsenseProcess::NonsenseProcess(const std::string& name, LinkProvider& provider, Reactor& reactor,
                                 const Address& router, Answer answer)
    : answer_(std::move(answer)),
      transport_(*Transport::Make(SmallTransportOptions(name), provider, reactor, *this)) {
  ReservationSpec spec;
  spec.scope = ReservationScope::kKind;
  spec.key.kind = kDispatchKind;
  spec.max_message_bytes = 1 << 20;
  spec.max_messages = 4;
  spec.on_delivery = [this](const Delivery& delivery) {
    if (!delivery.message.ok()) return;
    std::optional<Message> reply = answer_(*delivery.message);
    if (!reply.has_value()) return;
    EXPECT_TRUE(transport_->Send(delivery.source, delivery.lane, *std::move(reply)).ok());
  };
  EXPECT_TRUE(transport_->Reserve(std::move(spec)).ok());
  const auto peer = transport_->Connect(router);
  EXPECT_TRUE(peer.ok() && WaitFor([&] { return IsConnected(*transport_, *peer); }));
}

RemoteWorld::RemoteWorld(int32_t num_services, int32_t num_replicas, int64_t row_budget)
    : row_budget_(row_budget), experts_(static_cast<size_t>(num_services)) {
  StaticPlacementOptions placement;
  placement.num_services = num_services;
  placement.expert_replicas = num_replicas;
  placement.shared_slice_replicas = num_replicas;
  placement_ =
      *Placement::Static(PlacementShape::Make(kExperts, {false, true, true}, 1, 3), placement);
  for (int32_t service = 0; service < num_services; ++service) {
    plans_.push_back(std::make_unique<FaultPlan>(100 + static_cast<uint64_t>(service)));
    providers_.push_back(
        std::make_unique<FaultyProvider>(loopback_, *plans_.back(), running_.reactor()));
  }
  transport_ =
      *Transport::Make(SmallTransportOptions("router"), loopback_, running_.reactor(), directory_);
  address_ = *transport_->Listen({"127.0.0.1", 0});
  RemoteExpertsOptions options;
  options.hidden_size = kHidden;
  port_ = std::make_unique<RemoteExperts>(options, placement_, transport_.get(), &directory_,
                                          running_.clock());
  layer_ = std::make_unique<ExpertLayer>(
      ExpertLayer::Parts{&kernels_, &executor_, port_.get(), &placement_, row_budget_});
}

// Held frames are let go, so that every process can end.
RemoteWorld::~RemoteWorld() {
  for (auto& plan : plans_) plan->Clear();
  experts_.clear();
  nonsense_.clear();
  layer_.reset();
  port_.reset();
  transport_.reset();
}

void RemoteWorld::StartExpert(int32_t service, Hook hook) {
  DispatchServerOptions options;
  options.shape = placement_.shape();
  options.hidden_size = kHidden;
  options.row_budget = row_budget_;
  const auto index = static_cast<size_t>(service);
  experts_[index] = std::make_unique<ExpertProcess>(
      absl::StrCat("expert-", service), *providers_[index], running_.reactor(), running_.clock(),
      options,
      [this, service, hook = std::move(hook)](LayerId layer, const ServiceDispatch& dispatch,
                                              Bf16Rows rows, MutableBf16Rows replies,
                                              const std::function<void()>&) {
        for (const ExpertSegment& segment : dispatch.experts) {
          EXPECT_TRUE(placement_.Holds(layer, segment.id, ServiceId(service)));
        }
        const absl::Status status = hook == nullptr ? absl::OkStatus() : hook();
        if (status.ok()) MultiplyRows(kernels_, dispatch, rows, replies);
        return status;
      });
  experts_[index]->Join(address_);
  EXPECT_TRUE(WaitFor([&] { return directory_.IsExpertUsable(ServiceId(service)); }));
}

void RemoteWorld::StartNonsense(int32_t service, NonsenseProcess::Answer answer) {
  nonsense_.push_back(std::make_unique<NonsenseProcess>(absl::StrCat("expert-", service), loopback_,
                                                        running_.reactor(), address_,
                                                        std::move(answer)));
  EXPECT_TRUE(WaitFor([&] { return directory_.IsExpertUsable(ServiceId(service)); }));
}

void RemoteWorld::BeginStep(int64_t num_rows, uint64_t attempt) {
  ++step_.step;
  step_.term = 3;
  step_.attempt = attempt;
  step_.num_rows = num_rows;
  Random random(step_.step);
  rows_.Reset(num_rows, kHidden);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (Bf16& value : rows_.rows().span(row)) value = ToBf16(random.Normal());
  }
  dense_.Reset(num_rows, 0);
  choices_.Reset(num_rows, kTopK);
  std::vector<int32_t> ids(kExperts);
  std::iota(ids.begin(), ids.end(), 0);
  for (size_t at = 0; at < choices_.expert_ids.size(); ++at) {
    const size_t choice = at % kTopK;
    std::swap(ids[choice], ids[choice + random.Below(kExperts - choice)]);
    choices_.expert_ids[at] = ids[choice];
    choices_.weights[at] = 0.1f + random.Unit();
  }
  figures_ = StepFigures();
  EXPECT_TRUE(port_->BeginStep(step_).ok());
}

LayerRule RemoteWorld::RuleOf(int32_t layer) {
  return LayerRule{LayerId(layer), kExperts, 4, layer == 0 ? 3 : 1};
}

absl::Status RemoteWorld::Run(int32_t layer) {
  out_.Reset(rows_.num_rows(), kHidden);
  return layer_->Run(RuleOf(layer), AssignmentsOf(layer), rows_.rows(), out_.rows(), &figures_);
}

bool RemoteWorld::BitsAreRight(int32_t layer) {
  FakeExperts experts(kernels_);
  const Placement placement = Placement::SingleService(placement_.shape());
  ExpertLayer reference(ExpertLayer::Parts{&kernels_, &executor_, &experts, &placement});
  RowBatch<Bf16> expected(rows_.num_rows(), kHidden);
  StepFigures figures;
  EXPECT_TRUE(
      reference.Run(RuleOf(layer), AssignmentsOf(layer), rows_.rows(), expected.rows(), &figures)
          .ok());
  const auto bytes = static_cast<size_t>(rows_.num_rows() * kHidden) * sizeof(Bf16);
  return bytes == 0 || std::memcmp(out_.rows().data, expected.rows().data, bytes) == 0;
}

}  // namespace moebius
