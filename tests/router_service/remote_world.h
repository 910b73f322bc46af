// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moebius/base/mutex.h"
#include "moebius/base/random.h"
#include "moebius/kernels/kernels.h"
#include "moebius/routing/assignments.h"
#include "moebius/transport/faulty/faulty.h"
#include "moebius/transport/loopback/loopback.h"
#include "router_service/expert_layer.h"
#include "router_service/peer_directory.h"
#include "router_service/remote_experts.h"
#include "tests/router_service/fake_experts.h"
#include "tests/support/expert_process.h"

namespace moebius {

/// A roster that believes names: "expert-3" is in slot 3 and usable while it is connected.
class NamedDirectory final : public PeerDirectory, public PeerWatcher {
 public:
  void OnPeerState(const PeerInfo& peer) override;
  std::optional<PeerId> ExpertPeer(ServiceId service) const override;
  std::optional<PeerId> AttentionPeer(int32_t) const override { return std::nullopt; }
  bool IsExpertUsable(ServiceId service) const override;
  bool IsAttentionUsable(int32_t) const override { return false; }
  uint64_t version() const override;
  ListenerId AddListener(std::function<void()> on_change) override;
  void RemoveListener(ListenerId id) override;

 private:
  mutable Mutex mutex_;
  std::map<int32_t, PeerInfo> experts_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t version_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::map<ListenerId, std::function<void()>> listeners_ MOEBIUS_GUARDED_BY(mutex_);
};

/// A process that answers dispatches as no expert service would.
class NonsenseProcess final : public PeerWatcher {
 public:
  using Answer = std::function<std::optional<Message>(const Message& dispatch)>;
  NonsenseProcess(const std::string& name, LinkProvider& provider, Reactor& reactor,
                  const Address& router, Answer answer);
  void OnPeerState(const PeerInfo&) override {}

 private:
  const Answer answer_;
  std::unique_ptr<Transport> transport_;
};

/// A router's side of the expert path, and the services that it asks: 8 experts of MultiplyRows in
/// layers 1 and 2 with one shared slice, a dense layer 0 of 3 slices, 48 columns.
class RemoteWorld {
 public:
  static constexpr int32_t kExperts = 8;
  static constexpr int32_t kTopK = 3;
  static constexpr int64_t kHidden = 48;
  static constexpr int32_t kLayers = 3;

  /// Runs before the forward pass of a service, on its thread.
  using Hook = std::function<absl::Status()>;

  /// Services that have room for `row_budget` rows, and a router that knows it.
  RemoteWorld(int32_t num_services, int32_t num_replicas, int64_t row_budget = 256);
  ~RemoteWorld();

  /// Starts a service and waits until it is usable.
  void StartExpert(int32_t service, Hook hook = nullptr);
  void StartNonsense(int32_t service, NonsenseProcess::Answer answer);
  void EndExpert(int32_t service) { experts_[static_cast<size_t>(service)].reset(); }
  ExpertProcess& expert(int32_t service) { return *experts_[static_cast<size_t>(service)]; }
  /// Faults of what the service sends.
  FaultPlan& faults(int32_t service) { return *plans_[static_cast<size_t>(service)]; }

  /// New rows and choices, and a step of that many rows.
  void BeginStep(int64_t num_rows, uint64_t attempt = 0);
  /// Runs one layer of the step remotely; true when the bits are those of one process.
  absl::Status Run(int32_t layer);
  bool BitsAreRight(int32_t layer);
  const Assignments& AssignmentsOf(int32_t layer) { return layer == 0 ? dense_ : choices_; }
  static LayerRule RuleOf(int32_t layer);

  RunningReactor& running() { return running_; }
  const Placement& placement() const { return placement_; }
  NamedDirectory& directory() { return directory_; }
  Transport& transport() { return *transport_; }
  RemoteExperts& port() { return *port_; }
  Bf16Rows rows() const { return rows_.rows(); }
  const StepFigures& figures() const { return figures_; }

 private:
  const Kernels& kernels_ = BestKernels();
  const int64_t row_budget_;
  RunningReactor running_;
  LoopbackProvider loopback_{running_.reactor()};
  Executor executor_{1};
  Placement placement_;
  NamedDirectory directory_;
  std::unique_ptr<Transport> transport_;
  Address address_;
  std::unique_ptr<RemoteExperts> port_;
  std::unique_ptr<ExpertLayer> layer_;
  std::vector<std::unique_ptr<FaultPlan>> plans_;
  std::vector<std::unique_ptr<FaultyProvider>> providers_;
  std::vector<std::unique_ptr<ExpertProcess>> experts_;
  std::vector<std::unique_ptr<NonsenseProcess>> nonsense_;
  StepPlan step_;
  Assignments choices_;
  Assignments dense_;
  RowBatch<Bf16> rows_;
  RowBatch<Bf16> out_;
  StepFigures figures_;
};

}  // namespace moebius
