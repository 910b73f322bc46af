// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What a model's configuration says about its gates: read by the model room, computed with by the
/// routing room, which know nothing of each other.
namespace moebius {

/// How gate logits become scores (docs/model_format.md has the table by family).
enum class ScoreFunction { kSigmoid, kSoftmax };

/// What stands in for the selection scores outside the kept groups.
enum class GroupFill { kNegativeInfinity, kZero };

/// Gate to assignments of one MoE layer; the same for every MoE layer of a model.
struct GateConfig {
  int32_t num_experts = 0;  // E, routed experts, <= 1024
  int32_t top_k = 0;        // k <= num_experts / num_groups * num_kept_groups, <= 16
  int32_t num_groups = 1;   // G, divides num_experts
  int32_t num_kept_groups = 1;
  ScoreFunction score_function = ScoreFunction::kSoftmax;
  bool has_correction_bias = false;  // fp32, for the choice only
  bool normalize_weights = false;    // divide by the sum of the chosen (+ 1e-20 for sigmoid)
  float routed_scaling_factor = 1.0f;
};

}  // namespace moebius
