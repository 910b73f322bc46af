// SPDX-License-Identifier: Apache-2.0
#include "router_service/served_count.h"

#include <algorithm>

namespace moebius {

void ServedCount::Begin(int32_t num_experts) {
  served_.assign(static_cast<size_t>(num_experts), 0);
}

void ServedCount::AddRound(const DispatchPlan& plan, absl::Span<const int64_t> lost) {
  const auto is_routed = [this](int32_t id) { return static_cast<size_t>(id) < served_.size(); };
  for (const ServiceDispatch& dispatch : plan.services()) {
    for (const ExpertSegment& segment : dispatch.experts) {
      if (!is_routed(segment.id.value())) continue;
      served_[static_cast<size_t>(segment.id.value())] += segment.end - segment.begin;
    }
    if (lost.empty()) continue;
    for (size_t row = 0; row < dispatch.row_ids.size(); ++row) {
      if (!std::binary_search(lost.begin(), lost.end(), dispatch.row_ids[row])) continue;
      for (int64_t a = dispatch.row_begin[row]; a < dispatch.row_begin[row + 1]; ++a) {
        const int32_t id = dispatch.expert_ids[static_cast<size_t>(a)];
        if (is_routed(id)) --served_[static_cast<size_t>(id)];
      }
    }
  }
}

}  // namespace moebius
