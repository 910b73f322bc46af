// SPDX-License-Identifier: Apache-2.0
#include "cli/heat_map.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "cli/terminal.h"

#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr size_t kExpertsPerGroup = 8;
constexpr size_t kExpertsPerLine = 64;

const char* Shade(int64_t load, double mean) {
  const double ratio = static_cast<double>(load) / mean;
  if (ratio < 0.5) return "░";
  if (ratio <= 1.5) return "▒";
  return ratio <= 3 ? "▓" : "█";
}

absl::Span<const int64_t> LayerOf(const ExpertLoadTable& table, const std::vector<int64_t>& values,
                                  size_t layer) {
  const size_t num_experts = static_cast<size_t>(table.num_experts);
  return absl::MakeConstSpan(values).subspan(layer * num_experts, num_experts);
}

int64_t SumOf(absl::Span<const int64_t> values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum;
}

// Columns that a full line of shades takes.
int LineWidth(int32_t num_experts) {
  const int shown = std::min<int>(num_experts, kExpertsPerLine);
  return shown + (shown - 1) / static_cast<int>(kExpertsPerGroup);
}

void AppendLayer(const ExpertLoadTable& table, size_t layer, std::string* out) {
  const absl::Span<const int64_t> loads = LayerOf(table, table.demand, layer);
  const int64_t sum = SumOf(loads);
  const std::string label = absl::StrFormat("  layer %-3d ", table.layer_ids[layer]);
  if (sum == 0) {
    absl::StrAppend(out, label, "no tokens yet\n");
    return;
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(loads.size());
  const size_t busiest =
      static_cast<size_t>(std::max_element(loads.begin(), loads.end()) - loads.begin());
  const int width = LineWidth(table.num_experts);
  for (size_t begin = 0; begin < loads.size(); begin += kExpertsPerLine) {
    std::string line;
    const size_t end = std::min(begin + kExpertsPerLine, loads.size());
    for (size_t expert = begin; expert < end; ++expert) {
      if (expert > begin && expert % kExpertsPerGroup == 0) line += " ";
      line += Shade(loads[expert], mean);
    }
    if (begin == 0) {
      absl::StrAppendFormat(out, "%s%s%s  %5.1f  expert %d\n", label, line,
                            std::string(static_cast<size_t>(width - DisplayWidth(line)), ' '),
                            static_cast<double>(loads[busiest]) / mean, busiest);
    } else {
      absl::StrAppend(out, std::string(label.size(), ' '), line, "\n");
    }
  }
}

Json MatrixJson(const ExpertLoadTable& table, const std::vector<int64_t>& values) {
  std::vector<Json> rows;
  for (size_t layer = 0; layer < table.layer_ids.size(); ++layer) {
    std::vector<Json> row;
    for (const int64_t value : LayerOf(table, values, layer)) row.push_back(Json::Integer(value));
    rows.push_back(Json::Array(std::move(row)));
  }
  return Json::Array(std::move(rows));
}

}  // namespace

std::string FormatHeatMap(const ExpertLoadTable& table) {
  if (table.layer_ids.empty()) return "This model has no layer with routed experts.\n";
  std::string out =
      "Load, layer × expert (░ <½  ▒ ½–1½  ▓ 1½–3  █ >3 × the layer's mean), max/mean\n";
  for (size_t layer = 0; layer < table.layer_ids.size(); ++layer) AppendLayer(table, layer, &out);
  const int64_t demand = SumOf(table.demand);
  const int64_t dropped = SumOf(table.dropped);
  absl::StrAppend(&out, FormatCount(demand), " assignments, ", FormatCount(dropped), " dropped",
                  table.has_capacity ? "" : " (dropless: no capacity set)", "\n");
  return out;
}

std::string FormatExpertLoadJson(const ExpertLoadTable& table) {
  std::vector<Json> layer_ids;
  for (const int32_t layer : table.layer_ids) layer_ids.push_back(Json::Integer(layer));
  Json json = Json::Object({});
  json.Set("layer_ids", Json::Array(std::move(layer_ids)));
  json.Set("demand", MatrixJson(table, table.demand));
  json.Set("dropped", MatrixJson(table, table.dropped));
  return json.ToCanonicalText();
}

}  // namespace moebius
