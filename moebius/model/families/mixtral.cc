// SPDX-License-Identifier: Apache-2.0
// Mixtral: grouped queries, every layer sparse, softmax over all experts, the chosen weights always
// renormalised.
// Source: Jiang et al., "Mixtral of experts", 2024.
#include "moebius/model/families/family.h"

namespace moebius {

void ParseMixtral(FieldReader& reader, ModelConfig& config) {
  ParseGroupedQueryHeads(reader, config);
  ParseRope(reader, {1e6, config.attention.qk_head_dim, false}, config);
  RequireGateRule(reader, "softmax", "");
  config.moe_layers.assign(static_cast<size_t>(config.num_layers), true);
  config.moe_intermediate_size =
      reader.RequiredInteger("intermediate_size", 1, kMaxIntermediateSize);
  ParseExpertCounts(reader, {"num_local_experts", "num_experts"}, config);
  config.gate.score_function = ScoreFunction::kSoftmax;
  config.gate.normalize_weights = true;
  config.gate.routed_scaling_factor =
      static_cast<float>(reader.OptionalNumber("routed_scaling_factor", 1e-6, 1e6, 1.0));
  config.rms_norm_eps = reader.OptionalNumber("rms_norm_eps", 1e-12, 0.1, 1e-5);
  if (reader.Has("norm_topk_prob") && !reader.OptionalBoolean("norm_topk_prob", true)) {
    reader.RefuseUnsupported("norm_topk_prob", "is false, this family always renormalises");
  }
  if (reader.OptionalBoolean("attention_bias", false)) {
    reader.RefuseUnsupported("attention_bias", "is true, this family has no attention biases");
  }
}

}  // namespace moebius
