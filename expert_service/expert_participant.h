// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "expert_service/dispatch_server.h"
#include "expert_service/expert_pipeline.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/host_memory.h"
#include "moebius/base/mutex.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/weight_load.h"
#include "moebius/service/joiner.h"
#include "moebius/transport/transport.h"
#include "moebius/wire/slot_codec.h"

namespace moebius {

struct ExpertParticipantOptions {
  /// Set: no weights are loaded, and each dispatch is answered with zeros after so long. For
  /// measuring everything but the experts.
  std::optional<absl::Duration> mock_delay;
  DispatchQueueLimits queue;
  HostMemory memory;             // a slot whose weights pass its limit is refused; 0: none is known
  PackedCache* cache = nullptr;  // of packed weights; null: none
  /// Told how far a load has come, and at its end how the weights came, on the joiner's thread.
  std::function<void(int64_t loaded_bytes, int64_t total_bytes)> on_progress;
  std::function<void(const WeightLoadFigures& figures)> on_loaded;
  std::function<void(const absl::Status&)> on_not_held;  // DispatchServerOptions::on_not_held
};

/// What an expert service holds and has done.
struct ExpertParticipantFigures {
  int64_t num_held = 0;
  int64_t weight_bytes = 0;
  DispatchServerFigures dispatches;  // since the present slot was taken
};

/// An expert service behind its joiner: loads the experts and slices of its slot, and of nothing
/// else, then serves dispatches for them.
///
/// Invariants:
/// 1. When Load returns OK room for dispatches of the slot's row budget is reserved.
/// 2. A slot with the same experts as before loads nothing again; one that cannot be loaded leaves
///    what was served before in place.
///
/// Thread-safe. Borrows checkpoint, kernels, executor and clock.
class ExpertParticipant final : public Participant {
 public:
  ExpertParticipant(const ExpertParticipantOptions& options, const Checkpoint& checkpoint,
                    const Kernels& kernels, Executor* executor, const Clock& clock);
  ~ExpertParticipant() override;

  /// Once, before the joiner starts; the transport outlives Stop.
  void Bind(Transport* transport) { transport_ = transport; }
  /// No dispatch is served any more.
  void Stop();
  /// See DispatchServer::Drain; true at once where nothing is served. A slot that is taken later
  /// serves nobody either.
  bool Drain(absl::Duration timeout);

  absl::StatusOr<SlotReady> Load(const SlotAssignment& slot, const Progress& progress) override;
  void OnRouterUp(const PeerInfo&) override {}
  void OnRouterDown(const PeerInfo& router) override;

  ExpertParticipantFigures figures() const;
  /// Of the present slot, ascending; empty before there is one.
  std::vector<HeldExpert> held() const;
  const DispatchInstruments& instruments() const { return instruments_; }

 private:
  absl::StatusOr<std::shared_ptr<ExpertPipeline>> LoadExperts(const SlotAssignment& slot,
                                                              const Progress& progress);
  absl::Status Serve(const SlotAssignment& slot, std::shared_ptr<ExpertPipeline> pipeline);
  DispatchServer::Forward BuildForward() const;

  const ExpertParticipantOptions options_;
  const Checkpoint& checkpoint_;
  const Kernels& kernels_;
  Executor& executor_;
  const Clock& clock_;
  Transport* transport_ = nullptr;
  DispatchInstruments instruments_;

  mutable Mutex mutex_;
  // What is served; the joiner's thread alone changes it.
  std::optional<SlotAssignment> slot_ MOEBIUS_GUARDED_BY(mutex_);
  std::shared_ptr<ExpertPipeline> pipeline_ MOEBIUS_GUARDED_BY(mutex_);  // null for a mock
  std::shared_ptr<DispatchServer> server_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_draining_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

}  // namespace moebius
