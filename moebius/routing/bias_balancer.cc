// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/bias_balancer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

int64_t Sum(absl::Span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// How far an expert's demand is below the mean: in [-1, 1] for kProportional, a sign for kSign.
float Direction(BiasRule rule, int64_t demand, int64_t sum, int64_t num_experts) {
  // mean − demand, times E: whole numbers, so that "exactly even" is exactly 0.
  const int64_t below = sum - demand * num_experts;
  if (rule == BiasRule::kSign) return static_cast<float>((below > 0) - (below < 0));
  const double relative = static_cast<double>(below) / static_cast<double>(sum);
  return static_cast<float>(std::clamp(relative, -1.0, 1.0));
}

}  // namespace

absl::Status ValidateBiasOptions(const BiasOptions& options) {
  for (const auto& [name, value] :
       {std::pair("gamma", options.gamma), std::pair("limit", options.limit)}) {
    if (std::isfinite(value) && value > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("bias: %s is %g; it must be finite and more than 0", name, value));
  }
  return absl::OkStatus();
}

BiasUnit BiasUnitOf(ScoreFunction function) {
  return function == ScoreFunction::kSigmoid ? BiasUnit::kScore : BiasUnit::kSpread;
}

double MaxViolation(absl::Span<const int64_t> demand) {
  const int64_t sum = Sum(demand);
  if (sum == 0) return 0;
  const int64_t max = *std::max_element(demand.begin(), demand.end());
  return static_cast<double>(max) * static_cast<double>(demand.size()) / static_cast<double>(sum) -
         1;
}

float ScoreSpread(const GateConfig& config, FloatRows logits) {
  std::vector<float> scores(static_cast<size_t>(config.num_experts));
  const auto kth = scores.begin() + config.top_k - 1;
  const auto last = scores.begin() + std::min(2 * config.top_k, config.num_experts) - 1;
  double sum = 0;
  int64_t rows = 0;
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    if (!ScoreRow(config, logits.span(row), absl::MakeSpan(scores))) continue;
    std::nth_element(scores.begin(), last, scores.end(), std::greater<float>());
    std::nth_element(scores.begin(), kth, last, std::greater<float>());
    sum += *kth - *last;
    ++rows;
  }
  return rows == 0 ? 0 : static_cast<float>(sum / static_cast<double>(rows));
}

int64_t CountChangedRows(const Assignments& a, const Assignments& b) {
  MOEBIUS_CHECK_EQ(a.num_rows, b.num_rows);
  MOEBIUS_CHECK_EQ(a.top_k, b.top_k);
  int64_t changed = 0;
  for (int64_t row = 0; row < a.num_rows; ++row) {
    const absl::Span<const int32_t> of_a = a.RowIds(row), of_b = b.RowIds(row);
    // Ids are distinct: the sets are equal when one holds the other.
    changed += !std::all_of(of_a.begin(), of_a.end(), [&of_b](int32_t id) {
      return std::find(of_b.begin(), of_b.end(), id) != of_b.end();
    });
  }
  return changed;
}

BiasBalancer::BiasBalancer(const BiasOptions& options, std::vector<float> base)
    : options_(options), base_(std::move(base)), bias_(base_), demand_(base_.size(), 0) {
  MOEBIUS_CHECK(ValidateBiasOptions(options).ok());
}

float BiasBalancer::max_delta() const {
  float delta = 0;
  for (size_t e = 0; e < bias_.size(); ++e) delta = std::max(delta, std::abs(bias_[e] - base_[e]));
  return delta;
}

void BiasBalancer::Observe(absl::Span<const int64_t> demand, float spread) {
  MOEBIUS_CHECK_EQ(demand.size(), demand_.size());
  for (size_t e = 0; e < demand.size(); ++e) demand_[e] += demand[e];
  const int64_t sum = Sum(demand);
  observed_ += sum;
  spread_sum_ += static_cast<double>(sum) * spread;
}

void BiasBalancer::EndWindow() {
  if (observed_ == 0) return;
  max_violation_ = MaxViolation(demand_);
  float step = options_.gamma;
  if (options_.unit == BiasUnit::kSpread) {
    step *= static_cast<float>(spread_sum_ / static_cast<double>(observed_)) / kUnitSpread;
  }
  for (size_t e = 0; e < bias_.size(); ++e) {
    const float moved = bias_[e] + step * Direction(options_.rule, demand_[e], observed_,
                                                    static_cast<int64_t>(bias_.size()));
    bias_[e] = std::clamp(moved, base_[e] - options_.limit, base_[e] + options_.limit);
  }
  ++version_;
  std::fill(demand_.begin(), demand_.end(), 0);
  observed_ = 0;
  spread_sum_ = 0;
}

absl::Status BiasBalancer::Set(absl::Span<const float> bias) {
  if (bias.size() != base_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bias: %d values for %d experts", bias.size(), base_.size()));
  }
  for (size_t e = 0; e < bias.size(); ++e) {
    // The bounds as EndWindow has them: what was saved at a bound can be set again.
    if (bias[e] >= base_[e] - options_.limit && bias[e] <= base_[e] + options_.limit) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "bias: %g for expert %d; the checkpoint has %g and the limit is %g beside it", bias[e], e,
        base_[e], options_.limit));
  }
  bias_.assign(bias.begin(), bias.end());
  ++version_;
  return absl::OkStatus();
}

void BiasBalancer::Reset() {
  bias_ = base_;
  std::fill(demand_.begin(), demand_.end(), 0);
  observed_ = 0;
  spread_sum_ = 0;
  ++version_;
}

}  // namespace moebius
