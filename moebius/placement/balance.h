// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace moebius {

/// A slot that holds nothing.
inline constexpr int32_t kEmptySlot = -1;

/// Bounds of one layer's question; a plan's work grows with their product.
inline constexpr int32_t kMaxBalanceExperts = 4096;
inline constexpr int32_t kMaxBalanceDevices = 4096;
inline constexpr int64_t kMaxBalanceSlots = int64_t{1} << 20;
inline constexpr int64_t kMaxBalanceLoad = int64_t{1} << 46;  // of an expert: sums stay exact

/// One layer's question: how many replicas each expert gets, and which devices hold them. A device
/// is one expert service; devices [d·M/D…) of D form M nodes, experts [e·G/E…) of E form G groups.
struct BalanceProblem {
  /// [E], >= 0: the rows that chose the expert, where arithmetic bounds; for decode the steps in
  /// which it was active, since reading its weights bounds then.
  std::vector<int64_t> load;
  std::vector<int32_t> device_slots;  // [D]: experts that each device takes, >= 0
  int32_t num_groups = 1;
  int32_t num_nodes = 1;

  int32_t num_experts() const { return static_cast<int32_t>(load.size()); }
  int32_t num_devices() const { return static_cast<int32_t>(device_slots.size()); }
  int64_t num_slots() const;
  int32_t NodeOf(int32_t device) const {
    return static_cast<int32_t>(int64_t{device} * num_nodes / num_devices());
  }
};

/// One layer's answer. The rows of an expert are spread evenly over its replicas.
struct BalancedLayer {
  std::vector<int32_t> expert_of_slot;  // [num_slots], device by device; kEmptySlot where unused
  std::vector<int32_t> replica_count;   // [E]
  friend bool operator==(const BalancedLayer&, const BalancedLayer&) = default;
};

/// Where replicas of one expert may not meet.
enum class ReplicaRule { kAnywhere, kDistinctDevices };

/// INVALID_ARGUMENT names a count or load out of bounds, or that the slots are fewer than the
/// experts.
absl::Status ValidateBalanceProblem(const BalanceProblem& problem);

/// Checks an answer. INVALID_ARGUMENT names the rule that it breaks:
///  B1 every expert has a replica      B2 replica_count counts the slots
///  B3 ids are in range                B4 no device holds an expert twice (kDistinctDevices)
absl::Status ValidateBalancedLayer(const BalanceProblem& problem, const BalancedLayer& layer,
                                   ReplicaRule rule);

/// [D]: what each device has to do.
std::vector<double> DeviceLoads(const BalanceProblem& problem, const BalancedLayer& layer);

/// The heaviest device over the mean of all; 1 without load.
double MaxOverMean(const BalanceProblem& problem, const BalancedLayer& layer);

/// What no answer can beat: max(mean, max_e load_e / replicas_e) over the mean, for the replica
/// counts that make it least, each at most the number of devices that have a slot.
double LowerBoundOverMean(const BalanceProblem& problem);

/// Replica counts that make max_e load_e / replicas_e least: one each, then again and again to the
/// expert with the largest load per replica, ties to the lowest id, until `num_slots` are used or
/// every expert has `max_replicas`. Greedy is optimal here. `num_slots` >= the number of loads.
std::vector<int32_t> CountReplicas(absl::Span<const int64_t> load, int64_t num_slots,
                                   int32_t max_replicas);

}  // namespace moebius
