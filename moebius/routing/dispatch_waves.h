// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/placement/placement.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

/// Rows [begin, end) of a layer that are dispatched together.
struct Wave {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const Wave&, const Wave&) = default;
};

/// Cuts a layer's rows into waves, ascending and without gap, so that in each of them no service
/// gets more than limits.max_rows_per_service: one wave where that holds for all rows, else halves
/// of halves. A row goes to a service at most once, so a wave of that many rows always fits; a
/// row's bits are its own, so waves change none. Pure. Failures as BuildDispatchPlan, but for that
/// limit. `plan` is scratch, and keeps its memory.
absl::StatusOr<std::vector<Wave>> CutIntoWaves(const LayerRule& rule,
                                               const Assignments& assignments,
                                               const Placement& placement,
                                               const DispatchLimits& limits, DispatchPlan* plan);

/// The choices of a wave's rows, as rows 0, 1, … of `part`.
void SliceAssignments(const Assignments& assignments, Wave wave, Assignments* part);

/// Bytes that the rows of a plan take on the wire, each way, and what they would take if every
/// assignment had a row of its own. Rows alone: headers and indices come with them.
struct WireBytes {
  int64_t out = 0;
  int64_t back = 0;
  int64_t naive = 0;  // each way
};
WireBytes CountWireBytes(const DispatchCounts& counts, int64_t num_assignments, int64_t row_bytes);

}  // namespace moebius
