// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/strong_id.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

/// Assignments of each routed expert of one layer, counted in the dispatches of the plans that
/// completed the rows, and nowhere else: the other side of conservation. Reused from layer to
/// layer; not thread-safe.
class ServedCount {
 public:
  /// A new layer of E routed experts.
  void Begin(int32_t num_experts);
  /// Adds a round: what its plan dispatched, without the rows that `lost` lists (ascending, as rows
  /// of the plan): they are planned again as a whole.
  void AddRound(const DispatchPlan& plan, absl::Span<const int64_t> lost);
  /// [E].
  absl::Span<const int64_t> served() const { return served_; }

 private:
  std::vector<int64_t> served_;
};

}  // namespace moebius
