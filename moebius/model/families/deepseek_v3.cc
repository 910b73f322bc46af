// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 and R1, and Kimi K2, which is the same network under another name: latent attention,
// a sigmoid gate with a correction bias and a group limit, shared experts, leading dense layers.
// Source: DeepSeek-AI, "DeepSeek-V3 technical report", 2024, sections 2.1.1 and 2.1.2.
#include "absl/strings/str_cat.h"

#include "moebius/model/families/family.h"
#include "moebius/model/yarn_magnitude.h"

namespace moebius {
namespace {

void ParseLatentAttention(FieldReader& reader, ModelConfig& config) {
  AttentionConfig& attention = config.attention;
  MlaConfig mla;
  mla.q_lora_rank =
      static_cast<int32_t>(reader.OptionalInteger("q_lora_rank", 1, kMaxHiddenSize, 0));
  mla.kv_lora_rank =
      static_cast<int32_t>(reader.RequiredInteger("kv_lora_rank", 1, kMaxHiddenSize));
  mla.qk_nope_dim =
      static_cast<int32_t>(reader.RequiredInteger("qk_nope_head_dim", 1, kMaxHeadDim));
  mla.qk_rope_dim =
      static_cast<int32_t>(reader.RequiredInteger("qk_rope_head_dim", 2, kMaxHeadDim));
  // The norms inside the low-rank paths do not follow rms_norm_eps.
  mla.lora_norm_eps = 1e-6;

  attention.num_query_heads =
      static_cast<int32_t>(reader.RequiredInteger("num_attention_heads", 1, kMaxHeads));
  attention.num_kv_heads = attention.num_query_heads;
  attention.qk_head_dim = mla.qk_nope_dim + mla.qk_rope_dim;
  attention.v_head_dim = static_cast<int32_t>(reader.RequiredInteger("v_head_dim", 1, kMaxHeadDim));
  const int64_t kv_heads =
      reader.OptionalInteger("num_key_value_heads", 1, kMaxHeads, attention.num_query_heads);
  if (kv_heads != attention.num_query_heads) {
    reader.RefuseUnsupported(
        "num_key_value_heads",
        absl::StrCat("is ", kv_heads,
                     ", latent attention has one per query head: ", attention.num_query_heads));
  }
  // Derived values that the newer form repeats; head_dim means the rotated part there.
  const int64_t qk_head_dim =
      reader.OptionalInteger("qk_head_dim", 1, 2 * kMaxHeadDim, attention.qk_head_dim);
  if (qk_head_dim != attention.qk_head_dim) {
    reader.Refuse("qk_head_dim",
                  absl::StrCat("is ", qk_head_dim, ", not qk_nope_head_dim + qk_rope_head_dim = ",
                               attention.qk_head_dim));
  }
  const int64_t head_dim = reader.OptionalInteger("head_dim", 1, 2 * kMaxHeadDim, mla.qk_rope_dim);
  if (head_dim != mla.qk_rope_dim && head_dim != attention.qk_head_dim) {
    reader.Refuse("head_dim",
                  absl::StrCat("is ", head_dim, ", neither qk_rope_head_dim = ", mla.qk_rope_dim,
                               " nor the whole head = ", attention.qk_head_dim));
  }
  attention.mla = mla;
  ParseRope(reader, {10000.0, mla.qk_rope_dim, false}, config);
  attention.rope.pairing = reader.OptionalBoolean("rope_interleave", true)
                               ? RopePairing::kInterleaved
                               : RopePairing::kHalves;
  double scale = InverseSquareRoot(attention.qk_head_dim);
  const std::optional<YarnConfig>& yarn = attention.rope.yarn;
  if (yarn.has_value() && yarn->mscale_all_dim != 0) {
    const double magnitude = YarnMagnitude(yarn->factor, yarn->mscale_all_dim);
    scale = scale * magnitude * magnitude;
  }
  attention.softmax_scale = static_cast<float>(scale);
}

}  // namespace

void ParseDeepseekV3(FieldReader& reader, ModelConfig& config) {
  ParseLatentAttention(reader, config);
  RequireGateRule(reader, "sigmoid", "noaux_tc");
  if (const int64_t every = reader.OptionalInteger("moe_layer_freq", 1, kMaxLayers, 1);
      every != 1) {
    reader.RefuseUnsupported("moe_layer_freq", absl::StrCat("is ", every, ", only 1 is supported"));
  }
  ParseLeadingDenseLayers(reader, 3, config);
  config.moe_intermediate_size =
      reader.RequiredInteger("moe_intermediate_size", 1, kMaxIntermediateSize);
  config.num_shared_experts = reader.OptionalInteger("n_shared_experts", 0, 64, 0);
  ParseExpertCounts(reader, {"n_routed_experts", "num_local_experts"}, config);
  ParseGroups(reader, 8, 4, config);
  config.gate.score_function = ScoreFunction::kSigmoid;
  config.gate.has_correction_bias = true;
  config.gate.normalize_weights = reader.OptionalBoolean("norm_topk_prob", true);
  config.gate.routed_scaling_factor =
      static_cast<float>(reader.OptionalNumber("routed_scaling_factor", 1e-6, 1e6, 2.5));
  config.rms_norm_eps = reader.OptionalNumber("rms_norm_eps", 1e-12, 0.1, 1e-6);
  if (reader.OptionalBoolean("attention_bias", false)) {
    reader.RefuseUnsupported("attention_bias", "is true, latent attention with biases is not run");
  }
}

}  // namespace moebius
