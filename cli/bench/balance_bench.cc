// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/balance_bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/random.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

constexpr int64_t kAssignmentsPerExpert = 2000;

std::vector<int64_t> DemandOf(const Assignments& assignments, int32_t num_experts) {
  std::vector<int64_t> demand(static_cast<size_t>(num_experts), 0);
  for (const int32_t id : assignments.expert_ids) {
    if (id != kNoExpert) ++demand[static_cast<size_t>(id)];
  }
  return demand;
}

// --- The figure.

constexpr const char* kColors[] = {"#1b6ca8", "#c8553d", "#3a7d44",
                                   "#7a5195", "#b07d12", "#4d4d4d"};
constexpr int kWidth = 720, kPanelHeight = 200, kLeft = 64, kTop = 34, kGap = 62;

struct Panel {
  std::string title;
  double top_value = 1;
  int top = 0;  // in pixels
  double Y(double value) const {
    return top + kPanelHeight * (1 - std::min(value, top_value) / top_value);
  }
};

double X(size_t update, size_t count) {
  const auto last = static_cast<double>(std::max<size_t>(count, 2) - 1);
  return kLeft + (kWidth - kLeft - 20) * static_cast<double>(update) / last;
}

void DrawPanel(const Panel& panel, size_t count, std::string* svg) {
  absl::StrAppendFormat(svg, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>\n", kLeft,
                        panel.top - 12, panel.title);
  for (int tick = 0; tick <= 4; ++tick) {
    const double value = panel.top_value * tick / 4;
    absl::StrAppendFormat(svg,
                          "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                          "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.2g</text>\n",
                          kLeft, kWidth - 20, panel.Y(value), panel.Y(value), kLeft - 8,
                          panel.Y(value) + 4, value);
  }
  absl::StrAppendFormat(svg, "<text x=\"%d\" y=\"%d\">0</text>\n", kLeft,
                        panel.top + kPanelHeight + 18);
  absl::StrAppendFormat(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d updates</text>\n",
                        kWidth - 20, panel.top + kPanelHeight + 18, count - 1);
}

// At most one point for each pixel or so.
void DrawLine(const Panel& panel, const std::vector<double>& values, const char* color,
              std::string* svg) {
  const size_t stride = std::max<size_t>(1, values.size() / 400);
  absl::StrAppend(svg, "<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"", color,
                  "\" points=\"");
  for (size_t i = 0; i < values.size(); i += stride) {
    absl::StrAppendFormat(svg, "%.1f,%.1f ", X(i, values.size()), panel.Y(values[i]));
  }
  absl::StrAppend(svg, "\"/>\n");
}

}  // namespace

BalanceTraffic SkewedTraffic(ScoreFunction function, int32_t num_experts, int32_t top_k,
                             int num_windows, uint64_t seed) {
  BalanceTraffic traffic;
  traffic.config.num_experts = num_experts;
  traffic.config.top_k = top_k;
  traffic.config.score_function = function;
  traffic.config.normalize_weights = true;
  traffic.name = function == ScoreFunction::kSigmoid ? "sigmoid" : "softmax";
  Random random(seed);
  const int64_t rows = kAssignmentsPerExpert * num_experts / top_k;
  for (int window = 0; window < num_windows; ++window) {
    RowBatch<float>& logits = traffic.windows.emplace_back(rows, num_experts);
    for (int64_t row = 0; row < rows; ++row) {
      float* const values = logits.rows().row(row);
      for (int32_t expert = 0; expert < num_experts; ++expert) {
        // 2.5 for the first expert, then from 1 down to −1.
        const float skew = expert == 0 ? 2.5f
                                       : 1.0f - 2.0f * static_cast<float>(expert) /
                                                    static_cast<float>(num_experts);
        values[expert] = random.Normal() + skew;
      }
    }
  }
  return traffic;
}

BalanceCurve RunBalance(const BalanceTraffic& traffic, const BiasOptions& options,
                        int num_updates) {
  const GateConfig& config = traffic.config;
  std::vector<float> base = traffic.base;
  base.resize(static_cast<size_t>(config.num_experts), 0);
  BiasBalancer balancer(options, std::move(base));
  std::vector<Assignments> checkpoint(traffic.windows.size());
  std::vector<float> spread;
  GateCounts counts;
  for (size_t i = 0; i < checkpoint.size(); ++i) {
    const FloatRows rows = traffic.windows[i].rows();
    SelectExperts(config, GroupFill::kNegativeInfinity, rows, balancer.base(), &checkpoint[i],
                  &counts);
    spread.push_back(ScoreSpread(config, rows));
  }
  BalanceCurve curve;
  curve.name = traffic.name;
  Assignments chosen;
  for (int update = 0; update <= num_updates; ++update) {
    const size_t i = static_cast<size_t>(update) % checkpoint.size();
    SelectExperts(config, GroupFill::kNegativeInfinity, traffic.windows[i].rows(), balancer.bias(),
                  &chosen, &counts);
    const std::vector<int64_t> demand = DemandOf(chosen, config.num_experts);
    curve.max_violation.push_back(MaxViolation(demand));
    curve.changed.push_back(static_cast<double>(CountChangedRows(chosen, checkpoint[i])) /
                            static_cast<double>(std::max<int64_t>(1, chosen.num_rows)));
    balancer.Observe(demand, spread[i]);
    balancer.EndWindow();
  }
  curve.max_delta = balancer.max_delta();
  return curve;
}

std::string DrawCurves(const std::vector<BalanceCurve>& curves) {
  double most = 0.5;
  size_t count = 2;
  for (const BalanceCurve& curve : curves) {
    count = std::max(count, curve.max_violation.size());
    for (const double value : curve.max_violation) most = std::max(most, value);
  }
  const Panel violation{"MaxVio: heaviest expert over the mean, less 1", most, kTop};
  const Panel changed{"Rows whose set of experts is not the checkpoint's", 1.0,
                      kTop + kPanelHeight + kGap};
  const int legend = changed.top + kPanelHeight + 40;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, legend + 20 * static_cast<int>(curves.size()) + 10);
  DrawPanel(violation, count, &svg);
  DrawPanel(changed, count, &svg);
  for (size_t i = 0; i < curves.size(); ++i) {
    const char* const color = kColors[i % std::size(kColors)];
    DrawLine(violation, curves[i].max_violation, color, &svg);
    DrawLine(changed, curves[i].changed, color, &svg);
    const int y = legend + 20 * static_cast<int>(i);
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" "
                          "stroke-width=\"3\"/>\n<text x=\"%d\" y=\"%d\">%s: %.2f to %.2f</text>\n",
                          kLeft, kLeft + 24, y, y, color, kLeft + 32, y + 4, curves[i].name,
                          curves[i].max_violation.front(), curves[i].max_violation.back());
  }
  return svg + "</svg>\n";
}

}  // namespace moebius
