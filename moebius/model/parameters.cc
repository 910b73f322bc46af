// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/parameters.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

/// How a part is called inside `model.layers.N.`; the feed-forward parts follow the family.
absl::string_view LayerSuffix(Part part) {
  switch (part) {
    case Part::kAttentionNorm:
      return "input_layernorm.weight";
    case Part::kFfnNorm:
      return "post_attention_layernorm.weight";
    case Part::kQ:
      return "self_attn.q_proj.weight";
    case Part::kK:
      return "self_attn.k_proj.weight";
    case Part::kV:
      return "self_attn.v_proj.weight";
    case Part::kO:
      return "self_attn.o_proj.weight";
    case Part::kQBias:
      return "self_attn.q_proj.bias";
    case Part::kKBias:
      return "self_attn.k_proj.bias";
    case Part::kVBias:
      return "self_attn.v_proj.bias";
    case Part::kQNorm:
      return "self_attn.q_norm.weight";
    case Part::kKNorm:
      return "self_attn.k_norm.weight";
    case Part::kQA:
      return "self_attn.q_a_proj.weight";
    case Part::kQANorm:
      return "self_attn.q_a_layernorm.weight";
    case Part::kQB:
      return "self_attn.q_b_proj.weight";
    case Part::kKvA:
      return "self_attn.kv_a_proj_with_mqa.weight";
    case Part::kKvANorm:
      return "self_attn.kv_a_layernorm.weight";
    case Part::kKvB:
      return "self_attn.kv_b_proj.weight";
    case Part::kGate:
      return "gate.weight";
    case Part::kCorrectionBias:
      return "gate.e_score_correction_bias";
    case Part::kSharedGate:
      return "shared_experts.gate_proj.weight";
    case Part::kSharedUp:
      return "shared_experts.up_proj.weight";
    case Part::kSharedDown:
      return "shared_experts.down_proj.weight";
    case Part::kDenseGate:
      return "gate_proj.weight";
    case Part::kDenseUp:
      return "up_proj.weight";
    case Part::kDenseDown:
      return "down_proj.weight";
    default:
      MOEBIUS_CHECK(false);
      return "";
  }
}

bool IsFeedForward(Part part) { return part >= Part::kGate; }

absl::string_view ExpertSuffix(Family family, Part part) {
  const bool is_mixtral = family == Family::kMixtral;
  switch (part) {
    case Part::kExpertGate:
      return is_mixtral ? "w1.weight" : "gate_proj.weight";
    case Part::kExpertUp:
      return is_mixtral ? "w3.weight" : "up_proj.weight";
    default:
      return is_mixtral ? "w2.weight" : "down_proj.weight";
  }
}

/// Appends parameters with the names and flags that follow from their keys.
class ParameterList {
 public:
  explicit ParameterList(const ModelConfig& config) : config_(config) {}

  void Add(Part part, int64_t layer, std::vector<int64_t> shape, int64_t expert = -1) {
    const ParameterKey key{part, static_cast<int32_t>(layer), static_cast<int32_t>(expert)};
    const bool keeps_float = part == Part::kGate || part == Part::kCorrectionBias;
    parameters_.push_back({key, TensorName(config_, key), std::move(shape), keeps_float});
  }
  std::vector<Parameter> Take() { return std::move(parameters_); }

 private:
  const ModelConfig& config_;
  std::vector<Parameter> parameters_;
};

void AddLatentAttention(const ModelConfig& config, int64_t layer, ParameterList& list) {
  const AttentionConfig& attention = config.attention;
  const MlaConfig& mla = *attention.mla;
  const int64_t hidden = config.hidden_size;
  const int64_t heads = attention.num_query_heads;
  if (mla.q_lora_rank > 0) {
    list.Add(Part::kQA, layer, {mla.q_lora_rank, hidden});
    list.Add(Part::kQANorm, layer, {mla.q_lora_rank});
    list.Add(Part::kQB, layer, {heads * attention.qk_head_dim, mla.q_lora_rank});
  } else {
    list.Add(Part::kQ, layer, {heads * attention.qk_head_dim, hidden});
  }
  list.Add(Part::kKvA, layer, {mla.kv_lora_rank + mla.qk_rope_dim, hidden});
  list.Add(Part::kKvANorm, layer, {mla.kv_lora_rank});
  list.Add(Part::kKvB, layer, {heads * (mla.qk_nope_dim + attention.v_head_dim), mla.kv_lora_rank});
  list.Add(Part::kO, layer, {hidden, heads * attention.v_head_dim});
}

void AddGroupedQueryAttention(const ModelConfig& config, int64_t layer, ParameterList& list) {
  const AttentionConfig& attention = config.attention;
  const int64_t hidden = config.hidden_size;
  const int64_t q_width = int64_t{attention.num_query_heads} * attention.qk_head_dim;
  const int64_t k_width = int64_t{attention.num_kv_heads} * attention.qk_head_dim;
  const int64_t v_width = int64_t{attention.num_kv_heads} * attention.v_head_dim;
  list.Add(Part::kQ, layer, {q_width, hidden});
  list.Add(Part::kK, layer, {k_width, hidden});
  list.Add(Part::kV, layer, {v_width, hidden});
  list.Add(Part::kO, layer, {hidden, int64_t{attention.num_query_heads} * attention.v_head_dim});
  if (attention.qkv_bias) {
    list.Add(Part::kQBias, layer, {q_width});
    list.Add(Part::kKBias, layer, {k_width});
    list.Add(Part::kVBias, layer, {v_width});
  }
  if (attention.qk_norm != QkNorm::kNone) {
    const bool whole = attention.qk_norm == QkNorm::kWholeProjection;
    list.Add(Part::kQNorm, layer, {whole ? q_width : attention.qk_head_dim});
    list.Add(Part::kKNorm, layer, {whole ? k_width : attention.qk_head_dim});
  }
}

void AddFeedForward(const ModelConfig& config, int64_t layer, ParameterList& list) {
  const int64_t hidden = config.hidden_size;
  if (!config.IsMoeLayer(layer)) {
    const int64_t width = config.dense_intermediate_size;
    list.Add(Part::kDenseGate, layer, {width, hidden});
    list.Add(Part::kDenseUp, layer, {width, hidden});
    list.Add(Part::kDenseDown, layer, {hidden, width});
    return;
  }
  const int64_t num_experts = config.gate.num_experts;
  const int64_t width = config.moe_intermediate_size;
  list.Add(Part::kGate, layer, {num_experts, hidden});
  if (config.gate.has_correction_bias) list.Add(Part::kCorrectionBias, layer, {num_experts});
  if (config.num_shared_experts > 0) {
    const int64_t shared = config.num_shared_experts * width;
    list.Add(Part::kSharedGate, layer, {shared, hidden});
    list.Add(Part::kSharedUp, layer, {shared, hidden});
    list.Add(Part::kSharedDown, layer, {hidden, shared});
  }
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    list.Add(Part::kExpertGate, layer, {width, hidden}, expert);
    list.Add(Part::kExpertUp, layer, {width, hidden}, expert);
    list.Add(Part::kExpertDown, layer, {hidden, width}, expert);
  }
}

}  // namespace

absl::string_view PartName(Part part) {
  switch (part) {
    case Part::kEmbedding:
      return "embedding";
    case Part::kFinalNorm:
      return "final norm";
    case Part::kHead:
      return "output head";
    case Part::kGate:
      return "gate";
    case Part::kCorrectionBias:
      return "correction bias";
    case Part::kExpertGate:
      return "expert gate projection";
    case Part::kExpertUp:
      return "expert up projection";
    case Part::kExpertDown:
      return "expert down projection";
    case Part::kAttentionNorm:
      return "attention norm";
    case Part::kFfnNorm:
      return "feed-forward norm";
    default:
      return LayerSuffix(part);
  }
}

std::string TensorName(const ModelConfig& config, const ParameterKey& key) {
  switch (key.part) {
    case Part::kEmbedding:
      return "model.embed_tokens.weight";
    case Part::kFinalNorm:
      return "model.norm.weight";
    case Part::kHead:
      return config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
    default:
      break;
  }
  const std::string layer = absl::StrCat("model.layers.", key.layer, ".");
  if (!IsFeedForward(key.part)) return absl::StrCat(layer, LayerSuffix(key.part));
  const absl::string_view block = config.family == Family::kMixtral ? "block_sparse_moe." : "mlp.";
  if (key.part >= Part::kExpertGate) {
    return absl::StrCat(layer, block, "experts.", key.expert, ".",
                        ExpertSuffix(config.family, key.part));
  }
  return absl::StrCat(layer, block, LayerSuffix(key.part));
}

std::vector<Parameter> ExpectedParameters(const ModelConfig& config) {
  ParameterList list(config);
  list.Add(Part::kEmbedding, -1, {config.vocab_size, config.hidden_size});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    list.Add(Part::kAttentionNorm, layer, {config.hidden_size});
    if (config.attention.mla.has_value()) {
      AddLatentAttention(config, layer, list);
    } else {
      AddGroupedQueryAttention(config, layer, list);
    }
    list.Add(Part::kFfnNorm, layer, {config.hidden_size});
    AddFeedForward(config, layer, list);
  }
  list.Add(Part::kFinalNorm, -1, {config.hidden_size});
  if (!config.tied_head) list.Add(Part::kHead, -1, {config.vocab_size, config.hidden_size});
  return list.Take();
}

int64_t LayerOfTensor(absl::string_view tensor_name) {
  constexpr absl::string_view kPrefix = "model.layers.";
  if (!absl::StartsWith(tensor_name, kPrefix)) return -1;
  tensor_name.remove_prefix(kPrefix.size());
  int64_t layer = -1;
  return absl::SimpleAtoi(tensor_name.substr(0, tensor_name.find('.')), &layer) ? layer : -1;
}

absl::string_view IgnoreRule(const ModelConfig& config, absl::string_view tensor_name) {
  if (absl::EndsWith(tensor_name, ".rotary_emb.inv_freq")) return "rotary inv_freq";
  if (config.tied_head && tensor_name == "lm_head.weight") return "copy of a tied head";
  const bool has_next_token_layers = config.family == Family::kDeepseekV3 ||
                                     config.family == Family::kKimiK2 ||
                                     config.family == Family::kGlm4Moe;
  if (has_next_token_layers && LayerOfTensor(tensor_name) >= config.num_layers) {
    return "next-token layer";
  }
  return "";
}

}  // namespace moebius
