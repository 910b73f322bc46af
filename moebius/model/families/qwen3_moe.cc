// SPDX-License-Identifier: Apache-2.0
// Qwen3 MoE: grouped queries with a norm per head on q and k, softmax over all experts; some layers
// may be dense, by decoder_sparse_step and mlp_only_layers.
// Source: Qwen team, "Qwen3 technical report", 2025.
#include <algorithm>

#include "moebius/model/families/family.h"

namespace moebius {
namespace {

/// Layer l is sparse when it is not listed and (l + 1) is a multiple of the step.
void ParseSparseLayers(FieldReader& reader, ModelConfig& config) {
  const int64_t step = reader.OptionalInteger("decoder_sparse_step", 1, kMaxLayers, 1);
  const std::vector<int64_t> dense =
      reader.OptionalIntegers("mlp_only_layers", 0, std::max<int64_t>(config.num_layers - 1, 0));
  bool any_dense = false;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool listed = std::binary_search(dense.begin(), dense.end(), layer);
    config.moe_layers.push_back(!listed && (layer + 1) % step == 0);
    any_dense = any_dense || !config.moe_layers.back();
  }
  if (any_dense) {
    config.dense_intermediate_size =
        reader.RequiredInteger("intermediate_size", 1, kMaxIntermediateSize);
  }
  if (std::find(config.moe_layers.begin(), config.moe_layers.end(), true) ==
      config.moe_layers.end()) {
    reader.RefuseUnsupported("mlp_only_layers", "and decoder_sparse_step leave no sparse layer");
  }
}

}  // namespace

void ParseQwen3Moe(FieldReader& reader, ModelConfig& config) {
  ParseGroupedQueryHeads(reader, config);
  config.rms_norm_eps = reader.OptionalNumber("rms_norm_eps", 1e-12, 0.1, 1e-6);
  config.attention.qk_norm = QkNorm::kPerHead;
  config.attention.qk_norm_eps = config.rms_norm_eps;
  ParseRope(reader, {10000.0, config.attention.qk_head_dim, false}, config);
  RequireGateRule(reader, "softmax", "");
  ParseSparseLayers(reader, config);
  config.moe_intermediate_size =
      reader.RequiredInteger("moe_intermediate_size", 1, kMaxIntermediateSize);
  ParseExpertCounts(reader, {"num_experts", "num_local_experts"}, config);
  config.gate.score_function = ScoreFunction::kSoftmax;
  config.gate.normalize_weights = reader.OptionalBoolean("norm_topk_prob", false);
  config.gate.routed_scaling_factor =
      static_cast<float>(reader.OptionalNumber("routed_scaling_factor", 1e-6, 1e6, 1.0));
  if (reader.OptionalBoolean("attention_bias", false)) {
    reader.RefuseUnsupported("attention_bias", "is true, this family is run without biases");
  }
}

}  // namespace moebius
