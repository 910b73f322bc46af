// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "moebius/model/families/family.h"
#include "moebius/model/json.h"
#include "moebius/model/random_checkpoint.h"

namespace moebius {
namespace {

int64_t Or(int64_t value, int64_t otherwise) { return value > 0 ? value : otherwise; }

bool IsDeepseekLike(Family family) {
  return family == Family::kDeepseekV3 || family == Family::kKimiK2;
}

bool HasSharedExperts(Family family) {
  return IsDeepseekLike(family) || family == Family::kGlm4Moe;
}

absl::string_view DTypeText(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

void AddAttentionFields(const RandomCheckpointOptions& options, Json& config) {
  const int64_t heads = Or(options.num_heads, 4);
  const int64_t head_dim = Or(options.head_dim, 16);
  config.Set("num_attention_heads", Json::Integer(heads));
  if (IsDeepseekLike(options.family)) {
    config.Set("num_key_value_heads", Json::Integer(heads));
    config.Set("q_lora_rank", Json::Integer(Or(options.q_lora_rank, 2 * head_dim)));
    config.Set("kv_lora_rank", Json::Integer(Or(options.kv_lora_rank, 2 * head_dim)));
    config.Set("qk_nope_head_dim", Json::Integer(head_dim));
    const int64_t half = std::max<int64_t>(2, head_dim / 4 * 2);
    config.Set("qk_rope_head_dim", Json::Integer(Or(options.rope_dim, half)));
    config.Set("v_head_dim", Json::Integer(head_dim));
    return;
  }
  const bool one_to_one = options.family == Family::kOlmoe;
  config.Set("num_key_value_heads",
             Json::Integer(Or(options.num_kv_heads, one_to_one || heads % 2 != 0 ? heads : 2)));
  config.Set("head_dim", Json::Integer(head_dim));
  if (options.family == Family::kGlm4Moe) {
    config.Set("attention_bias", Json::Boolean(true));
    config.Set("partial_rotary_factor", Json::Number(0.5));
    config.Set("use_qk_norm", Json::Boolean(true));
  }
}

void AddExpertFields(const RandomCheckpointOptions& options, Json& config) {
  const Family family = options.family;
  const int64_t layers = Or(options.num_layers, 2);
  const int64_t width = Or(options.moe_intermediate_size, 32);
  const int64_t dense_width = Or(options.dense_intermediate_size, width * 5 / 2);
  const Json experts = Json::Integer(Or(options.num_experts, 8));
  config.Set("num_experts_per_tok", Json::Integer(Or(options.top_k, 2)));
  int64_t dense_layers = options.num_dense_layers;
  if (dense_layers < 0) dense_layers = layers > 1 ? 1 : 0;
  if (HasSharedExperts(family)) {
    config.Set("n_routed_experts", experts);
    config.Set("n_group", Json::Integer(Or(options.num_groups, 1)));
    config.Set("topk_group", Json::Integer(Or(options.num_kept_groups, 1)));
    const int64_t shared = options.num_shared_experts;
    config.Set("n_shared_experts", Json::Integer(shared < 0 ? 1 : shared));
    config.Set("first_k_dense_replace", Json::Integer(dense_layers));
    config.Set("routed_scaling_factor", Json::Number(IsDeepseekLike(family) ? 2.5 : 1.5));
    config.Set("norm_topk_prob", Json::Boolean(true));
    if (IsDeepseekLike(family)) {
      config.Set("scoring_func", Json::String("sigmoid"));
      config.Set("topk_method", Json::String("noaux_tc"));
    }
  } else if (family == Family::kQwen3Moe) {
    config.Set("num_experts", experts);
    config.Set("norm_topk_prob", Json::Boolean(true));
    config.Set("decoder_sparse_step", Json::Integer(1));
    std::vector<Json> dense;
    // As many as were asked for, from the second layer on; none by default.
    for (int64_t layer = 1; layer <= options.num_dense_layers && layer < layers; ++layer) {
      dense.push_back(Json::Integer(layer));
    }
    config.Set("mlp_only_layers", Json::Array(std::move(dense)));
  } else {
    config.Set(family == Family::kMixtral ? "num_local_experts" : "num_experts", experts);
    if (family == Family::kOlmoe) config.Set("norm_topk_prob", Json::Boolean(false));
    config.Set("intermediate_size", Json::Integer(width));
    return;
  }
  config.Set("moe_intermediate_size", Json::Integer(width));
  config.Set("intermediate_size", Json::Integer(dense_width));
}

void AddQuantizationField(const RandomCheckpointOptions& options, Json& config) {
  if (options.dtype != DType::kF8E4M3) return;
  Json quantization = Json::Object({});
  quantization.Set("quant_method", Json::String("fp8"));
  quantization.Set("fmt", Json::String("e4m3"));
  quantization.Set("activation_scheme", Json::String("dynamic"));
  quantization.Set("weight_block_size", Json::Array({Json::Integer(options.block_rows),
                                                     Json::Integer(options.block_columns)}));
  config.Set("quantization_config", std::move(quantization));
}

Json TokenIdFields(int64_t vocab_size) {
  Json ids = Json::Object({});
  // Above the bytes where there is room.
  const int64_t first = vocab_size > 258 ? 256 : 0;
  ids.Set("bos_token_id", Json::Integer(std::min(first, vocab_size - 1)));
  ids.Set("eos_token_id", Json::Integer(std::min(first + 1, vocab_size - 1)));
  return ids;
}

}  // namespace

std::string RandomConfigText(const RandomCheckpointOptions& options) {
  Json config = Json::Object({});
  for (const FamilyEntry& entry : FamilyTable()) {
    if (entry.family != options.family) continue;
    config.Set("model_type", Json::String(entry.model_type));
    config.Set("architectures", Json::Array({Json::String(entry.architectures[0])}));
  }
  const int64_t vocab_size = Or(options.vocab_size, 320);
  config.Set("vocab_size", Json::Integer(vocab_size));
  config.Set("hidden_size", Json::Integer(Or(options.hidden_size, 64)));
  config.Set("num_hidden_layers", Json::Integer(Or(options.num_layers, 2)));
  config.Set("max_position_embeddings", Json::Integer(Or(options.max_positions, 512)));
  config.Set("hidden_act", Json::String("silu"));
  config.Set("rms_norm_eps", Json::Number(options.rms_norm_eps));
  config.Set("rope_theta", Json::Number(options.rope_theta));
  config.Set("tie_word_embeddings", Json::Boolean(options.tied_head));
  config.Set("torch_dtype", Json::String(DTypeText(options.dtype)));
  const Json token_id_fields = TokenIdFields(vocab_size);
  for (const auto& [key, value] : token_id_fields.members()) config.Set(key, value);
  AddAttentionFields(options, config);
  AddExpertFields(options, config);
  AddQuantizationField(options, config);
  return config.ToPrettyText() + "\n";
}

std::string RandomGenerationText(const RandomCheckpointOptions& options) {
  return TokenIdFields(Or(options.vocab_size, 320)).ToPrettyText() + "\n";
}

}  // namespace moebius
