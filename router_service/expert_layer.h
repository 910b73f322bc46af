// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/routing/dispatch_waves.h"
#include "moebius/tensor/buffer.h"
#include "router_service/ports.h"
#include "router_service/replica_load.h"
#include "router_service/row_recovery.h"
#include "router_service/served_count.h"

namespace moebius {

/// Takes the rows of one layer to the expert services and back:
///
///   assignments ─▶ DispatchPlan ─▶ forward ─▶ replies ─▶ Combine ─▶ out
///        ▲                            │ a service failed
///        └──── the rows that it was asked for, without it
///
/// More rows than a service has room for go in waves, one after the other: a row goes to a service
/// at most once, so that no dispatch of a wave has more rows than the wave, whoever fails.
///
/// Invariants:
/// 1. Every assignment is dispatched and combined once in the plan that completes its row. Counts
///    are checked for each layer (row_recovery.h); while MOEBIUS_CHECKS is on, all rules of one
///    first plan in 31 and of every later one.
/// 2. `out` has the same bits whichever services answered, in however many waves.
/// 3. Without failures nothing is allocated in steady state.
/// 4. No dispatch has more rows than max_rows_per_service.
///
/// Not thread-safe. Borrows its parts.
class ExpertLayer {
 public:
  struct Parts {
    const Kernels* kernels = nullptr;
    Executor* executor = nullptr;
    ExpertPort* experts = nullptr;
    const Placement* placement = nullptr;
    int64_t max_rows_per_service = 0;  // of one dispatch: what services keep room for; 0: no limit
    int32_t message_rows = 0;          // DispatchLimits::message_rows
    ReplicaLoad* replica_load = nullptr;  // gets what was served where; null: nobody wants it
  };

  explicit ExpertLayer(const Parts& parts);

  /// `rows` and `out`: [assignments.num_rows, hidden_size]. Adds to the plan, expert, combine and
  /// stall seconds and to the counts of `figures`. UNAVAILABLE names layer and experts when the
  /// last replica is gone; other failures are the port's. `out` is unspecified on failure. Phases
  /// are noted in `phases`; null: nowhere.
  absl::Status Run(const LayerRule& rule, const Assignments& assignments, Bf16Rows rows,
                   MutableBf16Rows out, StepFigures* figures, PhaseLog* phases = nullptr);

  /// Assignments of each routed expert [E] that the plans of the last Run served, counted in their
  /// dispatches.
  absl::Span<const int64_t> served() const { return served_.served(); }

 private:
  absl::Status RunWave(const LayerRule& rule, const Assignments& assignments, Bf16Rows rows,
                       MutableBf16Rows out, StepFigures* figures, PhaseLog* phases);
  absl::Status Plan(const LayerRule& rule);
  void CountRound(int64_t width, StepFigures* figures) const;
  void CountNaive(int64_t width, StepFigures* figures) const;
  Bf16Rows GatherRows(Bf16Rows rows);
  void CombineRound(MutableBf16Rows out);

  const Kernels& kernels_;
  Executor& executor_;
  ExpertPort& experts_;
  const Placement& placement_;
  const int64_t max_rows_;
  const int32_t message_rows_;
  ReplicaLoad* const replica_load_;
  uint64_t num_plans_ = 0;

  // Of the round at hand; kept from layer to layer.
  int32_t num_calls_ = 0;  // of the layer
  Assignments wave_;       // where there is more than one
  RowRecovery recovery_;
  ServedCount served_;
  DispatchPlan plan_;
  std::vector<ServiceId> failed_;
  std::vector<int64_t> lost_;            // rows of plan_
  std::vector<RowBatch<Bf16>> replies_;  // per service [its reply rows, hidden_size]
  std::vector<MutableBf16Rows> reply_views_;
  RowBatch<Bf16> resent_;    // [rows of a later round, hidden_size], what goes out
  RowBatch<Bf16> combined_;  // the same rows, what comes of them
};

}  // namespace moebius
