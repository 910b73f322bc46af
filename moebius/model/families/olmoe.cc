// SPDX-License-Identifier: Apache-2.0
// OLMoE: norms over the whole q and k projections, every layer sparse, softmax over all experts.
// Source: Muennighoff et al., "OLMoE: open mixture-of-experts language models", 2024.
#include "moebius/model/families/family.h"

namespace moebius {

void ParseOlmoe(FieldReader& reader, ModelConfig& config) {
  ParseGroupedQueryHeads(reader, config);
  config.rms_norm_eps = reader.OptionalNumber("rms_norm_eps", 1e-12, 0.1, 1e-5);
  config.attention.qk_norm = QkNorm::kWholeProjection;
  config.attention.qk_norm_eps = config.rms_norm_eps;
  ParseRope(reader, {10000.0, config.attention.qk_head_dim, false}, config);
  RequireGateRule(reader, "softmax", "");
  config.moe_layers.assign(static_cast<size_t>(config.num_layers), true);
  config.moe_intermediate_size =
      reader.RequiredInteger("intermediate_size", 1, kMaxIntermediateSize);
  ParseExpertCounts(reader, {"num_experts", "num_local_experts"}, config);
  config.gate.score_function = ScoreFunction::kSoftmax;
  config.gate.normalize_weights = reader.OptionalBoolean("norm_topk_prob", false);
  config.gate.routed_scaling_factor =
      static_cast<float>(reader.OptionalNumber("routed_scaling_factor", 1e-6, 1e6, 1.0));
  if (reader.OptionalNumber("clip_qkv", -1e30, 1e30).has_value()) {
    reader.RefuseUnsupported("clip_qkv", "is set, clamped projections are not supported");
  }
  if (reader.OptionalBoolean("attention_bias", false)) {
    reader.RefuseUnsupported("attention_bias", "is true, this family is run without biases");
  }
}

}  // namespace moebius
