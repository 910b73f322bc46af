// SPDX-License-Identifier: Apache-2.0
// GLM-4.5 and its like: grouped queries with biases and a partial rotation, the sigmoid gate of
// DeepSeek-V3 without groups, shared experts, leading dense layers.
#include "moebius/model/families/family.h"

namespace moebius {

void ParseGlm4Moe(FieldReader& reader, ModelConfig& config) {
  ParseGroupedQueryHeads(reader, config);
  AttentionConfig& attention = config.attention;
  attention.qkv_bias = reader.OptionalBoolean("attention_bias", false);
  config.rms_norm_eps = reader.OptionalNumber("rms_norm_eps", 1e-12, 0.1, 1e-5);
  if (reader.OptionalBoolean("use_qk_norm", false)) {
    attention.qk_norm = QkNorm::kPerHead;
    attention.qk_norm_eps = config.rms_norm_eps;
  }
  ParseRope(reader, {10000.0, attention.qk_head_dim, /*allows_partial=*/true, /*partial=*/0.5},
            config);
  RequireGateRule(reader, "sigmoid", "noaux_tc");
  ParseLeadingDenseLayers(reader, 1, config);
  config.moe_intermediate_size =
      reader.RequiredInteger("moe_intermediate_size", 1, kMaxIntermediateSize);
  config.num_shared_experts = reader.OptionalInteger("n_shared_experts", 0, 64, 0);
  ParseExpertCounts(reader, {"n_routed_experts", "num_local_experts"}, config);
  ParseGroups(reader, 1, 1, config);
  config.gate.score_function = ScoreFunction::kSigmoid;
  config.gate.has_correction_bias = true;
  config.gate.normalize_weights = reader.OptionalBoolean("norm_topk_prob", true);
  config.gate.routed_scaling_factor =
      static_cast<float>(reader.OptionalNumber("routed_scaling_factor", 1e-6, 1e6, 1.0));
}

}  // namespace moebius
