// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/gate_sides.h"

#include <algorithm>
#include <cstddef>

#include "moebius/base/check.h"
#include "moebius/kernels/math.h"

namespace moebius {

void AddLogitBias(absl::Span<const float> bias, MutableFloatRows logits) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(bias.size()), logits.width);
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    const absl::Span<float> values = logits.span(row);
    for (size_t expert = 0; expert < bias.size(); ++expert) values[expert] += bias[expert];
  }
}

void WeighSharedExperts(const GateConfig& config, FloatRows logits, absl::Span<float> weights,
                        std::vector<int64_t>* refused_rows) {
  if (config.shared_weight == SharedWeight::kOne) {
    std::fill(weights.begin(), weights.end(), 1.0f);
    return;
  }
  MOEBIUS_CHECK_EQ(logits.width, 1);
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(weights.size()), logits.num_rows);
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    const float logit = *logits.row(row);
    const bool is_finite = logit - logit == 0;
    weights[static_cast<size_t>(row)] = is_finite ? Sigmoid(logit) : 0.0f;
    if (!is_finite) refused_rows->push_back(row);
  }
}

WeightUse UseWeight(const GateConfig& config, float weight) {
  if (config.weighted_side == WeightedSide::kInput) return {weight, 1};
  return {1, weight};
}

void WeighRow(float weight, absl::Span<const Bf16> row, absl::Span<Bf16> out) {
  MOEBIUS_CHECK_EQ(row.size(), out.size());
  if (weight == 1) {
    std::copy(row.begin(), row.end(), out.begin());
    return;
  }
  for (size_t column = 0; column < row.size(); ++column) {
    out[column] = ToBf16(weight * ToFloat(row[column]));
  }
}

}  // namespace moebius
