// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/base/gate_config.h"

namespace moebius {

// The two ends of a gate: what its logits are worth, and what the chosen weigh. The choice between
// them is gate.h's. Pure, thread-safe; everything runs in the executor's float environment.

/// What a row's experts are ranked by before any bias: sigmoid or softmax of the logits (fp32, one
/// fixed order of summation), or the logits as they are where the choice is by logit. `logits` [E],
/// finite, E >= 1; `scores` [E].
void ScoreExperts(ScoreFunction function, absl::Span<const float> logits, float* scores);

/// Weights of one row's experts, given whom it chose.
class ChoiceWeights {
 public:
  /// `scores` [E] of ScoreExperts; `chosen` [k], k >= 1, in choice order, which is that of the sum.
  ChoiceWeights(const GateConfig& config, const float* scores, absl::Span<const int32_t> chosen);

  /// The weight of an expert of this score: of the chosen their own, of others what they would
  /// have with the divisor that the chosen made.
  float Of(float score) const { return Unscaled(score) / divisor_ * scale_; }

 private:
  float Unscaled(float score) const;

  const ScoreFunction function_;
  const float scale_;
  float largest_ = 0;  // score of the chosen, for the softmax over them
  float divisor_ = 1;
};

}  // namespace moebius
