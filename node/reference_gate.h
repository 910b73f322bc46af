// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/model/model_config.h"

namespace moebius {

/// Chooses the experts of one token from its gate logits, as the model's definition states it
/// (sigmoid with correction bias and group limit: DeepSeek-V3 technical report, section 2.1.2;
/// softmax: Mixtral, OLMoE, Qwen3; by logit: gpt-oss, Llama 4). A statement of its own, so that it
/// can judge moebius/routing.
///
/// Ties are broken by the lowest id, among groups and among experts. The bias decides who is chosen
/// and enters no weight.
///
/// `logits` [E] (what is chosen for a NaN is unspecified); `bias` [E] or empty → `experts` [k]
/// ascending, `weights` [k] in that order. Pure.
void ChooseReferenceExperts(const GateConfig& config, GroupFill group_fill,
                            absl::Span<const float> logits, absl::Span<const float> bias,
                            absl::Span<int16_t> experts, absl::Span<float> weights);

}  // namespace moebius
