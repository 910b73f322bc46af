// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/reference/attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/kernels/math.h"
#include "moebius/kernels/reference/block_sum.h"

namespace moebius::reference {

float SumOfWeights(absl::Span<const float> weights) {
  constexpr size_t kChains = 16;
  MOEBIUS_CHECK_EQ(weights.size() % kChains, size_t{0});
  float chains[kChains] = {};
  for (size_t i = 0; i < weights.size(); ++i) chains[i % kChains] += weights[i];
  for (size_t half = kChains / 2; half > 0; half /= 2) {
    for (size_t c = 0; c < half; ++c) chains[c] += chains[c + half];
  }
  return chains[0];
}

SpanState ComputeSpanState(absl::Span<const Bf16> query, Bf16Rows keys, Bf16Rows values,
                           VisibleKeys visible, int64_t key_block, float scale,
                           absl::Span<float> acc) {
  const size_t block = static_cast<size_t>(key_block);
  SpanState state{-std::numeric_limits<float>::infinity(), 0.0f};
  std::fill(acc.begin(), acc.end(), 0.0f);
  for (int64_t begin = 0; begin < visible.end; begin += key_block) {
    const auto first = static_cast<size_t>(std::max<int64_t>(visible.begin - begin, 0));
    const auto end = static_cast<size_t>(std::min(key_block, visible.end - begin));
    if (first >= end) continue;
    std::vector<float> scores(end);
    float m = state.m;
    for (size_t j = first; j < end; ++j) {
      scores[j] = BlockSum(query, keys.span(begin + static_cast<int64_t>(j)), 0.0f) * scale;
      m = scores[j] > m ? scores[j] : m;
    }
    const float alpha = Exp(state.m - m);
    std::vector<float> weights(block, 0.0f);
    std::vector<Bf16> rounded(block);
    for (size_t j = first; j < end; ++j) {
      weights[j] = Exp(scores[j] - m);
      rounded[j] = ToBf16(weights[j]);
    }
    state.l = state.l * alpha + SumOfWeights(weights);
    for (size_t d = 0; d < acc.size(); ++d) {
      std::vector<Bf16> column(block);  // absent and hidden keys meet p = +0
      for (size_t j = first; j < end; ++j)
        column[j] = values.row(begin + static_cast<int64_t>(j))[d];
      acc[d] = FusedMultiplyAdd(acc[d], alpha, BlockSum(rounded, column, 0.0f));
    }
    state.m = m;
  }
  return state;
}

}  // namespace moebius::reference
