// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/model_config.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/capacity.h"
#include "moebius/tensor/buffer.h"
#include "router_service/bias_control.h"
#include "router_service/expert_load.h"
#include "router_service/ports.h"
#include "router_service/router_weights.h"

namespace moebius {

/// What a row owner decides of a layer's rows before anybody computes them: who their experts are,
/// and whom a capacity turns away. Follows a step layer by layer.
///
/// Invariants:
/// 1. A capacity is applied once, to all rows of the step together: the dispatch batch. Services,
///    waves, rounds and the order of replies come behind it and change nothing.
/// 2. Dry runs meet no capacity.
/// 3. Load is the gate's own demand, before the capacity.
/// 4. A session of which a row was rejected asks for nothing in the layers behind.
/// 5. A step chooses under one version of the biases. Those of a balancer in shadow mode change
///    nothing that a step gives back.
///
/// Not thread-safe. Borrows its parts.
class RowGate {
 public:
  struct Parts {
    const ModelConfig* config = nullptr;
    const NumericsConfig* numerics = nullptr;
    const RouterWeights* weights = nullptr;
    const Kernels* kernels = nullptr;
    Executor* executor = nullptr;
    CapacityPolicy capacity;        // dropless
    BiasControl* biases = nullptr;  // null: the checkpoint's
  };

  explicit RowGate(const Parts& parts);

  /// A new step; its load starts at zero. `plan` stays as it is until the step has ended.
  void BeginStep(const StepPlan& plan, StepPurpose purpose);

  /// `normed` [plan.num_rows, hidden_size] ─▶ assignments(); none in a dense layer, where every row
  /// visits every slice. Adds what it counted, and the rows that it refused, to `result`.
  void Choose(LayerId layer, Bf16Rows normed, StepResult* result);

  /// Of the last layer: what a capacity dropped is marked.
  const Assignments& assignments() const { return assignments_; }
  /// Of the last layer with a gate: [num_rows, num_experts] fp32.
  FloatRows logits() const { return logits_.rows(); }
  /// Of the step so far.
  StepLoad& load() { return load_; }

  /// The step has served and succeeded: what it showed goes to the balancer.
  void Commit();

 private:
  absl::Span<const float> BiasOf(LayerId layer) const;
  void CheckRules(LayerId layer);
  void Watch(LayerId layer);
  void LeaveOutRejected();
  void Limit(LayerId layer, StepResult* result);
  void RejectSessions(LayerId layer, StepResult* result);

  const ModelConfig& config_;
  const NumericsConfig& numerics_;
  const RouterWeights& weights_;
  const Kernels& kernels_;
  Executor& executor_;
  const CapacityPolicy capacity_;
  BiasControl* const biases_;

  const StepPlan* plan_ = nullptr;
  StepPurpose purpose_ = StepPurpose::kServe;
  uint64_t num_gates_ = 0;
  RowBatch<float> logits_;
  Assignments assignments_;
  StepLoad load_;
  CapacityLimiter limiter_;
  CapacityResult limited_;
  std::shared_ptr<const BiasSnapshot> snapshot_;  // of the step; null: the checkpoint's
  std::vector<BiasObservation> observations_;     // of the step, for the balancer
  Assignments shadow_;                            // what the balancer's biases would choose
  std::vector<uint8_t> left_out_;  // [num_rows]: of rejected sessions; empty while there are none
};

}  // namespace moebius
