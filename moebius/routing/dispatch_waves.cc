// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch_waves.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {

absl::StatusOr<std::vector<Wave>> CutIntoWaves(const LayerRule& rule,
                                               const Assignments& assignments,
                                               const Placement& placement,
                                               const DispatchLimits& limits, DispatchPlan* plan) {
  std::vector<Wave> waves;
  std::vector<Wave> open = {{0, assignments.num_rows}};  // the next one last
  Assignments part;
  while (!open.empty()) {
    const Wave wave = open.back();
    open.pop_back();
    const bool is_all = wave.begin == 0 && wave.end == assignments.num_rows;
    if (!is_all) SliceAssignments(assignments, wave, &part);
    const absl::Status status =
        BuildDispatchPlan(rule, is_all ? assignments : part, placement, limits, plan);
    if (status.ok()) {
      waves.push_back(wave);
    } else if (absl::IsResourceExhausted(status) && wave.end - wave.begin > 1) {
      const int64_t middle = wave.begin + (wave.end - wave.begin) / 2;
      open.push_back({middle, wave.end});
      open.push_back({wave.begin, middle});
    } else {
      return status;
    }
  }
  return waves;
}

void SliceAssignments(const Assignments& assignments, Wave wave, Assignments* part) {
  MOEBIUS_CHECK(wave.begin >= 0 && wave.begin <= wave.end && wave.end <= assignments.num_rows);
  part->Reset(wave.end - wave.begin, assignments.top_k);
  const int64_t first = wave.begin * assignments.top_k, last = wave.end * assignments.top_k;
  std::copy(assignments.expert_ids.begin() + first, assignments.expert_ids.begin() + last,
            part->expert_ids.begin());
  std::copy(assignments.weights.begin() + first, assignments.weights.begin() + last,
            part->weights.begin());
  for (const int64_t row : assignments.refused_rows) {
    if (row >= wave.begin && row < wave.end) part->refused_rows.push_back(row - wave.begin);
  }
}

WireBytes CountWireBytes(const DispatchCounts& counts, int64_t num_assignments, int64_t row_bytes) {
  return {counts.dispatched_rows * row_bytes, counts.reply_rows * row_bytes,
          num_assignments * row_bytes};
}

}  // namespace moebius
