// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/expert_load.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr std::pair<ExpertDetail, absl::string_view> kDetailNames[] = {
    {ExpertDetail::kAuto, "auto"},
    {ExpertDetail::kOff, "off"},
    {ExpertDetail::kLayerExpert, "layer-expert"},
};

struct Series {
  int64_t count = 0;
  size_t layer_index = 0;
  size_t expert = 0;
};

// The hottest series, in the order of layer and expert.
std::vector<Series> Hottest(std::vector<Series> all, size_t max_series) {
  if (all.size() <= max_series) return all;
  const auto place = [](const Series& series) {
    return std::pair(series.layer_index, series.expert);
  };
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(max_series);
  std::partial_sort(all.begin(), end, all.end(), [&](const Series& a, const Series& b) {
    return a.count != b.count ? a.count > b.count : place(a) < place(b);
  });
  all.erase(end, all.end());
  std::sort(all.begin(), all.end(),
            [&](const Series& a, const Series& b) { return place(a) < place(b); });
  return all;
}

size_t MaxSeries(ExpertDetail detail, size_t num_series) {
  if (detail == ExpertDetail::kOff) return 0;
  if (detail == ExpertDetail::kLayerExpert || num_series <= kAutoExpertSeries) return num_series;
  return kHottestExperts;
}

}  // namespace

absl::string_view ExpertDetailName(ExpertDetail detail) {
  return kDetailNames[static_cast<size_t>(detail)].second;
}

bool ParseExpertDetail(absl::string_view text, ExpertDetail* detail) {
  for (const auto& [value, name] : kDetailNames) {
    if (name != text) continue;
    *detail = value;
    return true;
  }
  return false;
}

void WriteExpertLoad(const ExpertDemand& demand, ExpertDetail detail, MetricWriter& writer) {
  const size_t num_experts = demand.num_experts;
  MOEBIUS_CHECK_EQ(demand.counts.size(), demand.layer_ids.size() * num_experts);
  MOEBIUS_CHECK(demand.dropped.empty() || demand.dropped.size() == demand.counts.size());
  MOEBIUS_CHECK_EQ(demand.active.size(), demand.layer_ids.size());
  std::vector<Series> all;
  all.reserve(demand.counts.size());
  for (size_t layer = 0; layer < demand.layer_ids.size(); ++layer) {
    int64_t sum = 0;
    int64_t max = 0;
    for (size_t expert = 0; expert < num_experts; ++expert) {
      const int64_t count = demand.counts[layer * num_experts + expert];
      sum += count;
      max = std::max(max, count);
      all.push_back({count, layer, expert});
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(num_experts);
    writer.WriteGauge(Metric::kExpertLoadMaxOverMean,
                      sum == 0 ? 0 : static_cast<double>(max) / mean,
                      {absl::StrCat(demand.layer_ids[layer])});
    writer.WriteGauge(Metric::kDistinctExpertsActive, static_cast<double>(demand.active[layer]),
                      {absl::StrCat(demand.layer_ids[layer])});
  }
  const size_t max_series = MaxSeries(detail, all.size());
  const std::vector<Series> shown = Hottest(std::move(all), max_series);
  const auto write = [&](Metric metric, const Series& series, int64_t count) {
    writer.WriteCounter(
        metric, static_cast<double>(count),
        {absl::StrCat(demand.layer_ids[series.layer_index]), absl::StrCat(series.expert)});
  };
  for (const Series& series : shown) write(Metric::kExpertAssignments, series, series.count);
  if (demand.dropped.empty()) return;
  for (const Series& series : shown) {
    write(Metric::kExpertAssignmentsDropped, series,
          demand.dropped[series.layer_index * num_experts + series.expert]);
  }
}

}  // namespace moebius
