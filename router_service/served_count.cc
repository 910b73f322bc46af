// SPDX-License-Identifier: Apache-2.0
#include "router_service/served_count.h"

namespace moebius {

void ServedCount::Begin(int32_t num_experts) {
  served_.assign(static_cast<size_t>(num_experts), 0);
}

void ServedCount::AddRound(const DispatchPlan& plan, absl::Span<const int64_t> lost) {
  ForEachServed(plan, lost, [this](ServiceId, ExpertId id, int64_t count) {
    const auto index = static_cast<size_t>(id.value());
    if (index < served_.size()) served_[index] += count;  // slices are nobody's choice
  });
}

}  // namespace moebius
