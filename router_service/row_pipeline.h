// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/model_config.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/capacity.h"
#include "router_service/bias_control.h"
#include "router_service/expert_load.h"
#include "router_service/ports.h"
#include "router_service/replica_load.h"
#include "router_service/router_weights.h"

namespace moebius {

/// The layer loop of the rows that one process owns (docs/life_of_a_token.md has the drawing):
///
///   embed ▸ per layer: norm ▸ attention port ▸ + residual ▸ norm ▸ gate ▸ dispatch plan
///                      ▸ expert port ▸ combine ▸ + residual   ▸ final norm ▸ head
///
/// It knows nothing of requests, sampling or scheduling (the lead), and nothing of who answers
/// behind the two ports.
///
/// Invariants:
/// 1. The residual is fp32 and is rounded only where it is normalised.
/// 2. Every assignment that the gate made and no capacity dropped is dispatched and combined once
///    (expert_layer.h). Counted on both sides; a step for which that does not hold fails: INTERNAL.
/// 3. Without a capacity a row's bits depend on its own tokens alone, never on the other rows of
///    the step. With one, on the rows of the step, and still on no service.
/// 4. In steady state (no step larger than one seen before) its own phases allocate nothing.
///
/// Not thread-safe: one call at a time. Output arithmetic runs on the executor; called on an
/// executor thread (a process that owns all parts) it runs inline.
class RowPipeline final : public RowOwnerPort {
 public:
  struct Parts {
    const ModelConfig* config = nullptr;
    const NumericsConfig* numerics = nullptr;
    const RouterWeights* weights = nullptr;
    const Kernels* kernels = nullptr;
    Executor* executor = nullptr;
    AttentionPort* attention = nullptr;
    ExpertPort* experts = nullptr;
    const Placement* placement = nullptr;
    /// Of one dispatch, what services keep room for; more rows go in waves. 0: no limit.
    int64_t max_rows_per_service = 0;
    /// DispatchLimits::message_rows; nothing: by the size of the model's experts.
    std::optional<int32_t> message_rows;
    ExpertLoad* load = nullptr;     // of steps that serve and have succeeded; null: nowhere
    CapacityPolicy capacity;        // of each expert in a step; dropless
    BiasControl* biases = nullptr;  // of the gates; null: the checkpoint's
  };

  /// Borrows everything in `parts` for its own lifetime.
  explicit RowPipeline(const Parts& parts);
  ~RowPipeline() override;

  absl::Status RunStep(const StepRequest& request, StepResult* result) override;
  void EndSession(SessionId session) override;
  KvPool kv_pool() const override;
  bool WaitUntilUsable(absl::Duration timeout) override;
  std::vector<SessionId> TakeLostSessions() override;

  /// Takes rows that are normalised already through the experts of one MoE layer, as a step of its
  /// own: `out` is what their residual would gain. Both [num_rows, hidden_size]. Counts as load.
  /// INVALID_ARGUMENT naming the first row that is not finite, RESOURCE_EXHAUSTED one that a
  /// capacity rejected; else what the expert port says.
  absl::Status ForwardRows(uint64_t step, LayerId layer, Bf16Rows normed, MutableBf16Rows out,
                           ForwardResult* forward);

  /// What each replica has served in steps that count as load. Thread-safe.
  const ReplicaLoad& replica_load() const;

  /// Called for the steps that follow; null for none.
  void SetObserver(StepObserver* observer);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
