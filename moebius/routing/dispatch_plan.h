// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/base/strong_id.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/dispatch.h"

namespace moebius {

/// What the sum of a layer takes from the model, and never from the cluster.
struct LayerRule {
  LayerId layer;
  int32_t num_experts = 0;         // E, the first slice's id, in dense layers too
  int32_t num_combine_groups = 1;  // group of expert e: floor(num_combine_groups · e / E)
  int32_t num_slices = 0;          // shared experts' of a MoE layer, or all of a dense layer

  int32_t CombineGroup(int32_t expert_id) const {
    return static_cast<int32_t>(int64_t{num_combine_groups} * expert_id / num_experts);
  }
};

/// What a plan must respect and may choose by.
struct DispatchLimits {
  int64_t max_rows_per_service = 0;  // 0: none. RESOURCE_EXHAUSTED beyond
  /// Services that may be asked, by index; empty: all. Suspect and dead ones are left out here.
  absl::Span<const uint8_t> usable_services;
  /// Rows whose arithmetic takes as long as reading one expert's weights. Below twice that an id
  /// goes to one replica, so that its weights are read once; above, its rows are spread.
  int32_t balance_rows = 32;
  /// Rows whose arithmetic takes as long as asking one more service does (MessageRows). A row of
  /// small experts goes to few services, large ones are spread. 0: asking costs nothing.
  int32_t message_rows = 0;
  /// Always the replica with this index, modulo the replicas: to show that none changes a bit.
  std::optional<int32_t> forced_replica;
};

/// One term of a row's sum, in the order of the sum.
struct CombineEntry {
  enum class Kind : uint8_t {
    kTerm,      // weight · y_e, into the chain of its group
    kGroupSum,  // a combine group that its service summed
    kSlice,     // y of a slice, added as it is
    kRowSum,    // all slices of a dense layer, summed: the row itself
  };
  int32_t service = 0;
  int32_t reply_row = 0;
  float weight = 0;  // of a kTerm
  Kind kind = Kind::kTerm;
  bool ends_group = false;  // of the last kTerm of a group: the chain is rounded here
};

/// What a plan counted, in 64 bits.
struct DispatchCounts {
  int64_t demanded = 0;         // routed assignments that the gate made (refused rows made none)
  int64_t served = 0;           // of these, dispatched
  int64_t dropped = 0;          // of these, dropped by capacity
  int64_t dispatched_rows = 0;  // a row counts once per service
  int64_t reply_rows = 0;
  int64_t active_experts = 0;  // distinct (service, id) pairs: sets of weights that are read
};

/// Who computes what in one layer, and how the replies become rows. Built by BuildDispatchPlan,
/// read by whoever dispatches, and needed by Combine: nothing can be combined without it.
///
/// Invariants (ValidateDispatchPlan names them):
///  R1 every kept assignment is dispatched once and combined once
///  R2 demand = served + dropped, for each expert and in sum
///  R3 a row goes to a service at most once
///  R4 a service holds what it is asked for, in the placement's epoch
///  R5 ids are in range and distinct within a row, weights are finite
///  R6 no service gets more than the limits allow, or is unusable
///  R7 a row's sum has the model's order: groups ascending, choices ascending, slices ascending
///  R8 a reply row that joins assignments is a whole combine group (or dense row) of its row
///  R9 reply rows are numbered by the rule of ServiceDispatch, each is combined once
///
/// A value that steps reuse: building into it again keeps its memory. Views point into it, so it
/// moves but does not copy.
struct DispatchPlan {
 public:
  DispatchPlan();
  ~DispatchPlan();
  DispatchPlan(DispatchPlan&&) noexcept;
  DispatchPlan& operator=(DispatchPlan&&) noexcept;

  const LayerRule& rule() const { return rule_; }
  Epoch epoch() const { return epoch_; }
  int64_t num_rows() const { return num_rows_; }
  /// By service index, all of the placement's, those without rows too.
  absl::Span<const ServiceDispatch> services() const { return services_; }
  /// Terms of row t's sum, in order; empty for a refused row, which combines to zeros.
  absl::Span<const CombineEntry> Entries(int64_t row) const;
  const DispatchCounts& counts() const { return counts_; }

 private:
  friend class DispatchPlanBuilder;
  struct Scratch;  // of the builder

  LayerRule rule_;
  Epoch epoch_;
  int64_t num_rows_ = 0;
  DispatchCounts counts_;
  std::vector<ServiceDispatch> services_;
  // Of all services, one after the other; R, N summed over them.
  std::vector<int32_t> row_ids_;
  std::vector<int64_t> row_begin_;  // [R + services]
  std::vector<int32_t> expert_ids_;
  std::vector<float> weights_;
  std::vector<uint8_t> joins_previous_;
  std::vector<ExpertSegment> experts_;
  std::vector<int32_t> expert_rows_;
  std::vector<int32_t> expert_position_;
  // Of the rows' sums.
  std::vector<int64_t> entry_begin_;  // [num_rows + 1]
  std::vector<CombineEntry> entries_;
  std::unique_ptr<Scratch> scratch_;
};

/// Plans one layer. Pure: the same arguments give the same plan on every machine. A row goes to a
/// service at most once; replicas are chosen so that few sets of weights are read (one replica per
/// id until it has rows enough to pay for a second one) and the services' work is level.
/// `assignments` [T, k] of the layer's gate, [T, 0] in a dense layer; all slices are added here.
///
/// INVALID_ARGUMENT: an id out of range or shapes that do not fit. UNAVAILABLE: an expert without
/// usable replica, named. RESOURCE_EXHAUSTED: more rows for a service than the limit. On failure
/// `plan` holds no rows. Allocates only where `plan` grows.
absl::Status BuildDispatchPlan(const LayerRule& rule, const Assignments& assignments,
                               const Placement& placement, const DispatchLimits& limits,
                               DispatchPlan* plan);

/// Checks R1 to R9 from scratch, slowly. INTERNAL names the broken rule and where.
absl::Status ValidateDispatchPlan(const DispatchPlan& plan, const Assignments& assignments,
                                  const Placement& placement, const DispatchLimits& limits);

}  // namespace moebius
