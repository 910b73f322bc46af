// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/gate_scores.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "moebius/base/check.h"
#include "moebius/kernels/inline.h"
#include "moebius/kernels/math.h"

namespace moebius {
namespace {

// Keeps 0/0 away where all chosen scores underflow, those of a softmax too where a bias chose; too
// small to change any other sum.
constexpr float kSumGuard = 1e-20f;

// Exp of kernels/math.h with its two early returns turned into selects, so that loops over experts
// have a vector form; the same bits for every x but NaN, which no accepted row has.
MOEBIUS_ALWAYS_INLINE float ExpWithoutBranch(float x) {
  using math_internal::Bits;
  using math_internal::FromBits;
  using math_internal::Horner6;
  using math_internal::kExpCoefficients;
  using math_internal::kExpMax;
  using math_internal::kExpMin;
  using math_internal::kLn2High;
  using math_internal::kLn2Low;
  using math_internal::kLog2OfE;
  using math_internal::kRoundingShift;
  const float low = x < kExpMin ? kExpMin : x;
  const float clamped = low > kExpMax ? kExpMax : low;
  const float shifted = clamped * kLog2OfE + kRoundingShift;
  const float whole = shifted - kRoundingShift;
  const float r = (clamped - whole * kLn2High) - whole * kLn2Low;
  const auto n = static_cast<int32_t>(Bits(shifted) - Bits(kRoundingShift));
  const int32_t half = n >> 1;
  const float low_scale = FromBits(static_cast<uint32_t>(half + 127) << 23);
  const float high_scale = FromBits(static_cast<uint32_t>(n - half + 127) << 23);
  const float inside = Horner6(kExpCoefficients, r) * low_scale * high_scale;
  const float above = x > kExpMax ? std::numeric_limits<float>::infinity() : inside;
  return x < kExpMin ? 0.0f : above;
}

MOEBIUS_ALWAYS_INLINE float SigmoidWithoutBranch(float x) {
  return 1.0f / (1.0f + ExpWithoutBranch(-x));
}

void Sigmoids(absl::Span<const float> logits, float* scores) {
  const float* const in = logits.data();
  const auto size = static_cast<int64_t>(logits.size());
  for (int64_t e = 0; e < size; ++e) scores[e] = SigmoidWithoutBranch(in[e]);
}

void Softmax(absl::Span<const float> logits, absl::Span<float> scores) {
  float largest = logits[0];
  for (const float logit : logits) largest = std::max(largest, logit);
  for (size_t e = 0; e < logits.size(); ++e) scores[e] = ExpWithoutBranch(logits[e] - largest);
  // Eight chains, expert e in chain e mod 8, then pairwise: one order for everyone.
  std::array<float, 8> chains{};
  for (size_t e = 0; e < scores.size(); ++e) chains[e % 8] += scores[e];
  const float sum = ((chains[0] + chains[4]) + (chains[2] + chains[6])) +
                    ((chains[1] + chains[5]) + (chains[3] + chains[7]));
  for (float& score : scores) score = score / sum;
}

}  // namespace

void ScoreExperts(ScoreFunction function, absl::Span<const float> logits, float* scores) {
  switch (function) {
    case ScoreFunction::kSigmoid:
      return Sigmoids(logits, scores);
    case ScoreFunction::kSoftmax:
      return Softmax(logits, absl::MakeSpan(scores, logits.size()));
    case ScoreFunction::kSoftmaxOfChosen:
    case ScoreFunction::kSigmoidOfChosen:
      std::copy(logits.begin(), logits.end(), scores);
      return;
  }
}

ChoiceWeights::ChoiceWeights(const GateConfig& config, const float* scores,
                             absl::Span<const int32_t> chosen)
    : function_(config.score_function), scale_(config.routed_scaling_factor) {
  MOEBIUS_DCHECK(!chosen.empty());
  const bool is_softmax_of_chosen = function_ == ScoreFunction::kSoftmaxOfChosen;
  if (is_softmax_of_chosen) {
    // A bias may have put another expert first.
    largest_ = scores[chosen[0]];
    for (const int32_t id : chosen) largest_ = std::max(largest_, scores[id]);
  }
  if (!config.normalize_weights && !is_softmax_of_chosen) return;
  divisor_ = 0;
  for (const int32_t id : chosen) divisor_ += Unscaled(scores[id]);
  divisor_ += kSumGuard;
}

float ChoiceWeights::Unscaled(float score) const {
  switch (function_) {
    case ScoreFunction::kSigmoid:
    case ScoreFunction::kSoftmax:
      return score;
    case ScoreFunction::kSoftmaxOfChosen:
      return ExpWithoutBranch(score - largest_);
    case ScoreFunction::kSigmoidOfChosen:
      return SigmoidWithoutBranch(score);
  }
  return 0;
}

}  // namespace moebius
