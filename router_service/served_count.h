// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/strong_id.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

/// Calls add(service, id, n) until what it was told adds up to what a round's plan dispatched to
/// each service for each id, without the rows that `lost` lists (ascending, as rows of the plan):
/// they are planned again as a whole. n is below 0 where a lost row is taken back.
template <typename Add>
void ForEachServed(const DispatchPlan& plan, absl::Span<const int64_t> lost, Add add) {
  for (const ServiceDispatch& dispatch : plan.services()) {
    for (const ExpertSegment& segment : dispatch.experts) {
      add(dispatch.service, segment.id, segment.end - segment.begin);
    }
    if (lost.empty()) continue;
    for (size_t row = 0; row < dispatch.row_ids.size(); ++row) {
      if (!std::binary_search(lost.begin(), lost.end(), dispatch.row_ids[row])) continue;
      for (int64_t a = dispatch.row_begin[row]; a < dispatch.row_begin[row + 1]; ++a) {
        add(dispatch.service, ExpertId(dispatch.expert_ids[static_cast<size_t>(a)]), int64_t{-1});
      }
    }
  }
}

/// Assignments of each routed expert of one layer, counted in the dispatches of the plans that
/// completed the rows, and nowhere else: the other side of conservation. Reused from layer to
/// layer; not thread-safe.
class ServedCount {
 public:
  /// A new layer of E routed experts.
  void Begin(int32_t num_experts);
  /// Adds a round, as ForEachServed tells it.
  void AddRound(const DispatchPlan& plan, absl::Span<const int64_t> lost);
  /// [E].
  absl::Span<const int64_t> served() const { return served_; }

 private:
  std::vector<int64_t> served_;
};

}  // namespace moebius
