// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/telemetry/registry.h"

namespace moebius {

/// How much of layer × expert a scrape shows (--metrics-expert-detail). Whatever it is, layers are
/// never added up: expert 9 of one layer and expert 9 of another are different networks.
enum class ExpertDetail {
  kAuto,         // every series while there are at most kAutoExpertSeries, else the hottest
  kOff,          // each layer's max/mean alone
  kLayerExpert,  // every series
};
/// "auto", "off", "layer-expert".
absl::string_view ExpertDetailName(ExpertDetail detail);
/// False for any other text.
bool ParseExpertDetail(absl::string_view text, ExpertDetail* detail);

inline constexpr size_t kAutoExpertSeries = 2048;
inline constexpr size_t kHottestExperts = 10;

/// Assignments of each routed expert of each MoE layer since the start.
struct ExpertDemand {
  absl::Span<const int32_t> layer_ids;  // the MoE layers [L], ascending
  size_t num_experts = 0;               // E
  absl::Span<const int64_t> counts;     // [L, E]
  absl::Span<const int64_t> dropped;    // [L, E], of these; empty: no capacity is set
  absl::Span<const int64_t> active;     // [L], experts that had rows in the last step
};

/// Writes moebius_expert_assignments_total, and what was dropped of it, as `detail` says, and each
/// layer's moebius_expert_load_max_over_mean and moebius_distinct_experts_active. Of equally hot
/// experts the lower layer and id come first. Labels are made here, when somebody scrapes, and
/// nowhere else.
void WriteExpertLoad(const ExpertDemand& demand, ExpertDetail detail, MetricWriter& writer);

}  // namespace moebius
