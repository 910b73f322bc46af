// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

#include "moebius/api/placement_table.h"
#include "moebius/base/strong_id.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

/// How the rows of each expert and slice were spread over the services that hold it, since the
/// start. Counted where they are planned, by the owner of the rows, when a step is done: a row that
/// was sent again counts once, at the service that completed it.
///
/// Add calls come from the stepping thread; reading is thread-safe, without a lock: a reader may
/// meet a step half added.
class ReplicaLoad {
 public:
  /// Borrows the placement.
  explicit ReplicaLoad(const Placement& placement);

  /// Forgets what was added since the last Commit.
  void BeginStep();
  /// Adds a round of one layer, as ForEachServed (served_count.h) tells it. The plan is one of this
  /// placement.
  void AddRound(const DispatchPlan& plan, absl::Span<const int64_t> lost);
  /// The step has succeeded: what was added counts.
  void Commit();

  /// Rows of an id by replica, in the order of Placement::Services.
  std::vector<int64_t> Served(LayerId layer, ExpertId id) const;
  /// Fills in what the services of a table of this placement have served.
  void Describe(PlacementTable* table) const;

 private:
  size_t First(LayerId layer, ExpertId id) const;

  const Placement& placement_;
  std::vector<size_t> first_id_;                   // [layers], of a layer in first_replica_
  std::vector<size_t> first_replica_;              // [all ids], into the counters
  std::vector<int64_t> step_;                      // [all replicas], of the step at hand
  std::vector<size_t> touched_;                    // of step_: what is not 0, perhaps twice
  std::unique_ptr<std::atomic<int64_t>[]> total_;  // [all replicas]
};

}  // namespace moebius
