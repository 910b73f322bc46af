// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What a model's configuration says about its gates: read by the model room, computed with by the
/// routing room, which know nothing of each other.
namespace moebius {

/// How gate logits become scores (docs/routing.md has the table by family).
enum class ScoreFunction {
  kSigmoid,          // of every expert; the choice is by score
  kSoftmax,          // over all experts; the choice is by score
  kSoftmaxOfChosen,  // the choice is by logit, and the softmax over the chosen alone (gpt_oss)
  kSigmoidOfChosen,  // the choice is by logit, and a sigmoid of each of the chosen (llama4)
};

/// "sigmoid", "softmax", "softmax-of-chosen", "sigmoid-of-chosen".
constexpr const char* ScoreFunctionName(ScoreFunction function) {
  switch (function) {
    case ScoreFunction::kSigmoid:
      return "sigmoid";
    case ScoreFunction::kSoftmax:
      return "softmax";
    case ScoreFunction::kSoftmaxOfChosen:
      return "softmax-of-chosen";
    case ScoreFunction::kSigmoidOfChosen:
      return "sigmoid-of-chosen";
  }
  return "";
}

/// What the weight of an assignment multiplies.
enum class WeightedSide {
  kOutput,  // the expert's output, in its combine group's sum
  kInput,   // the row that the expert is given; its output is then added as it is (llama4)
};

/// What shared experts weigh, which every row visits.
enum class SharedWeight {
  kOne,
  kSigmoidGate,  // the sigmoid of row · shared gate, a vector that the row owner has (qwen2_moe)
};

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
  /// fp32 [E], added to the logits before anything else: of the choice and of the weights
  /// (gpt_oss).
  bool has_logit_bias = false;
  bool normalize_weights = false;  // divide by the sum of the chosen + 1e-20
  float routed_scaling_factor = 1.0f;
  WeightedSide weighted_side = WeightedSide::kOutput;
  SharedWeight shared_weight = SharedWeight::kOne;
};

}  // namespace moebius
