// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/base/gate_config.h"
#include "moebius/routing/assignments.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// Which assignments of a full expert stay: the first C in this order.
enum class CapacityOrder {
  kWeight,    // weight descending, then token, then choice ascending
  kPosition,  // choice, then token ascending: first choices before second ones
  kToken,     // token ascending
};

/// What becomes of the others.
enum class CapacityOverflow {
  kDrop,             // left out of the row's sum; the other weights stay as they are
  kDropRenormalize,  // left out; the row's other weights keep the sum that all of them had
  kNextBest,         // to the best expert with room that the row has not chosen; else dropped
  kReject,           // all assignments of the row are dropped, and its request fails
};

/// How much each expert of a layer takes of one dispatch batch: of all rows that one row owner
/// sends through the layer in one step. Dropless by default.
struct CapacityPolicy {
  double factor = 0;         // CF; 0: dropless
  int64_t min_capacity = 1;  // rows that an expert takes at least
  CapacityOrder order = CapacityOrder::kWeight;
  CapacityOverflow overflow = CapacityOverflow::kDrop;
  int32_t max_tries = kMaxTopK;  // experts that kNextBest looks at for one assignment

  bool dropless() const { return factor == 0; }
  friend bool operator==(const CapacityPolicy&, const CapacityPolicy&) = default;
};

/// INVALID_ARGUMENT names the field: a factor that is negative or not finite, min_capacity or
/// max_tries below 1.
absl::Status ValidateCapacity(const CapacityPolicy& policy);

/// A policy as flags spell it; an empty text leaves the default.
struct CapacityText {
  std::string factor;        // --capacity-factor: "1.25"
  std::string min_capacity;  // --min-capacity
  std::string order;         // --capacity-by: weight, position or token
  std::string overflow;      // --capacity-overflow: drop, drop_renormalize, next_best or reject
};
/// INVALID_ARGUMENT names the flag, also where the others are given without a factor.
absl::StatusOr<CapacityPolicy> ParseCapacity(const CapacityText& text);

/// "capacity factor 1.25 by weight, drop; of all rows of a step": what an answer says of it.
std::string DescribeCapacity(const CapacityPolicy& policy);

/// C = max(min_capacity, ceil(CF·T·k/E)); a factor from E/k upwards gives at least T and drops
/// nothing. Products that are whole but for the rounding of the factor (1.1 · 100) are whole. Not
/// for a dropless policy.
int64_t ExpertCapacity(const CapacityPolicy& policy, int64_t num_rows, int32_t top_k,
                       int32_t num_experts);

/// What a gate chose from, for CapacityOverflow::kNextBest: the arguments of SelectExperts.
struct GateInput {
  const GateConfig* config = nullptr;
  FloatRows logits;              // [T, E]
  absl::Span<const float> bias;  // [E] or empty
};

/// What a capacity did to the assignments of one layer. Per expert [E]; for each:
///   demand = served − rerouted_in + rerouted_out + dropped
/// The sums are over all of them. Reused from layer to layer.
struct CapacityResult {
  int64_t capacity = 0;  // C; 0 where the policy is dropless
  std::vector<int64_t> demand;
  std::vector<int64_t> dropped;
  std::vector<int64_t> rerouted_out;  // by the expert that was full
  std::vector<int64_t> rerouted_in;   // by the expert that took them
  int64_t total_dropped = 0;
  int64_t total_rerouted = 0;
  std::vector<int64_t> rejected_rows;  // kReject: rows whose requests fail, ascending

  // By row [T]; empty where nothing was dropped or rerouted.
  std::vector<int32_t> dropped_of_row;
  std::vector<int32_t> rerouted_of_row;
};

/// Checks what a capacity did to `assignments`, from scratch. INTERNAL names the broken rule:
///  C1 no expert keeps more than C      C2 demand is accounted for, per expert and in sum
///  C3 ids are in range and distinct within a row, weights are finite
///  C4 the counts by row add up
absl::Status ValidateCapacityResult(const Assignments& assignments, const CapacityResult& result);

/// Applies a policy to what a gate chose: one total order per expert decides, so that one batch has
/// one result on every machine, whatever the placement, the number of services or the order in
/// which they answer. Dropped assignments keep their expert as MarkDropped. Pure but for the memory
/// that it keeps; not thread-safe.
///
/// Overflow is found once, from the gate's own demand: what one assignment leaves free is given to
/// no other. kNextBest then takes overflow in the order of (token, choice); a rerouted assignment
/// keeps its place among the row's choices, and its weight is the new expert's score on the row's
/// own scale (as it would be with the divisor that the gate had), so that no other weight changes.
class CapacityLimiter {
 public:
  /// `gate` is needed for kNextBest alone. `assignments` as SelectExperts left it: nothing is
  /// dropped yet. Allocates only where memory grows. Runs in the executor's float environment.
  void Apply(const CapacityPolicy& policy, int32_t num_experts, const GateInput& gate,
             Assignments* assignments, CapacityResult* result);

 private:
  void GroupByExpert(const Assignments& assignments, int32_t num_experts);
  void FindOverflow(const CapacityPolicy& policy, const Assignments& assignments, int64_t capacity);
  void Drop(Assignments& assignments, CapacityResult& result);
  void Reroute(const CapacityPolicy& policy, const GateInput& gate, Assignments& assignments,
               CapacityResult& result);
  void RejectRows(Assignments& assignments, CapacityResult& result);

  std::vector<int64_t> begin_;      // [E + 1], of an expert in by_expert_
  std::vector<int64_t> by_expert_;  // indices of assignments, ascending within an expert
  std::vector<int64_t> overflow_;   // indices of assignments, ascending
  std::vector<int64_t> taken_;      // [E], of kNextBest: rows that an expert has so far
};

}  // namespace moebius
