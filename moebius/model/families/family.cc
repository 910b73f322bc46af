// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/families/family.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr absl::string_view kDeepseekNames[] = {"DeepseekV3ForCausalLM"};
constexpr absl::string_view kKimiNames[] = {"DeepseekV3ForCausalLM", "KimiK2ForCausalLM"};
constexpr absl::string_view kGlmNames[] = {"Glm4MoeForCausalLM"};
constexpr absl::string_view kMixtralNames[] = {"MixtralForCausalLM"};
constexpr absl::string_view kOlmoeNames[] = {"OlmoeForCausalLM"};
constexpr absl::string_view kQwenNames[] = {"Qwen3MoeForCausalLM"};

constexpr std::array<FamilyEntry, 6> kFamilies = {{
    {Family::kDeepseekV3, "deepseek_v3", kDeepseekNames, ParseDeepseekV3},
    {Family::kKimiK2, "kimi_k2", kKimiNames, ParseDeepseekV3},
    {Family::kGlm4Moe, "glm4_moe", kGlmNames, ParseGlm4Moe},
    {Family::kQwen3Moe, "qwen3_moe", kQwenNames, ParseQwen3Moe, WindowFields::kSwitched},
    {Family::kOlmoe, "olmoe", kOlmoeNames, ParseOlmoe},
    {Family::kMixtral, "mixtral", kMixtralNames, ParseMixtral, WindowFields::kAlways},
}};

}  // namespace

absl::Span<const FamilyEntry> FamilyTable() { return kFamilies; }

double InverseSquareRoot(int64_t head_dim) {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

void ParseGroupedQueryHeads(FieldReader& reader, ModelConfig& config) {
  AttentionConfig& attention = config.attention;
  const int64_t heads = reader.RequiredInteger("num_attention_heads", 1, kMaxHeads);
  const int64_t kv_heads = reader.OptionalInteger("num_key_value_heads", 1, kMaxHeads, heads);
  if (heads % kv_heads != 0) {
    reader.Refuse(
        "num_key_value_heads",
        absl::StrCat("is ", kv_heads, ", which does not divide num_attention_heads = ", heads));
  }
  if (!reader.Has("head_dim") && config.hidden_size % heads != 0) {
    reader.Refuse("head_dim", absl::StrCat("is absent, and hidden_size = ", config.hidden_size,
                                           " is no multiple of num_attention_heads = ", heads));
  }
  const int64_t head_dim = reader.OptionalInteger("head_dim", 2, kMaxHeadDim,
                                                  config.hidden_size / std::max<int64_t>(heads, 1));
  attention.num_query_heads = static_cast<int32_t>(heads);
  attention.num_kv_heads = static_cast<int32_t>(kv_heads);
  attention.qk_head_dim = static_cast<int32_t>(head_dim);
  attention.v_head_dim = static_cast<int32_t>(head_dim);
  attention.softmax_scale = static_cast<float>(InverseSquareRoot(head_dim));
}

void ParseExpertCounts(FieldReader& reader, std::initializer_list<absl::string_view> names,
                       ModelConfig& config) {
  GateConfig& gate = config.gate;
  gate.num_experts = static_cast<int32_t>(reader.RequiredInteger(names, 1, kMaxExperts));
  gate.top_k = static_cast<int32_t>(reader.RequiredInteger("num_experts_per_tok", 1, kMaxTopK));
  if (gate.top_k > gate.num_experts) {
    reader.Refuse("num_experts_per_tok", absl::StrCat("is ", gate.top_k, ", there are only ",
                                                      gate.num_experts, " experts"));
  }
}

void ParseGroups(FieldReader& reader, int64_t num_groups_otherwise, int64_t kept_otherwise,
                 ModelConfig& config) {
  GateConfig& gate = config.gate;
  const int64_t groups = reader.OptionalInteger("n_group", 1, kMaxExperts, num_groups_otherwise);
  const int64_t kept =
      reader.OptionalInteger("topk_group", 1, kMaxExperts, std::min(kept_otherwise, groups));
  gate.num_groups = static_cast<int32_t>(groups);
  gate.num_kept_groups = static_cast<int32_t>(kept);
  if (gate.num_experts % groups != 0) {
    reader.Refuse("n_group", absl::StrCat("is ", groups, ", which does not divide the ",
                                          gate.num_experts, " experts"));
    return;
  }
  const int64_t group_size = gate.num_experts / groups;
  if (kept > groups) {
    reader.Refuse("topk_group", absl::StrCat("is ", kept, ", there are only ", groups, " groups"));
  } else if (groups > 1 && group_size < 2) {
    reader.Refuse("n_group", "leaves groups of one expert, a group's score is the sum of two");
  } else if (gate.top_k > kept * group_size) {
    reader.Refuse("num_experts_per_tok",
                  absl::StrCat("is ", gate.top_k, ", the ", kept, " kept groups have only ",
                               kept * group_size, " experts"));
  }
}

void RequireGateRule(FieldReader& reader, absl::string_view name, absl::string_view method) {
  if (const auto score = reader.OptionalString("scoring_func"); score.has_value()) {
    if (*score != name) {
      reader.RefuseUnsupported("scoring_func",
                               absl::StrCat("is \"", *score, "\", this family has \"", name, "\""));
    }
  }
  if (const auto topk = reader.OptionalString("topk_method"); topk.has_value()) {
    if (method.empty() || *topk != method) {
      reader.RefuseUnsupported("topk_method",
                               absl::StrCat("is \"", *topk, "\", which is not supported"));
    }
  }
}

void ParseLeadingDenseLayers(FieldReader& reader, int64_t otherwise, ModelConfig& config) {
  const int64_t num_dense =
      reader.OptionalInteger("first_k_dense_replace", 0, kMaxLayers, otherwise);
  if (num_dense >= config.num_layers) {
    reader.Refuse(
        "first_k_dense_replace",
        absl::StrCat("is ", num_dense, ", which leaves no sparse layer of ", config.num_layers));
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    config.moe_layers.push_back(layer >= num_dense);
  }
  if (num_dense > 0) {
    config.dense_intermediate_size =
        reader.RequiredInteger("intermediate_size", 1, kMaxIntermediateSize);
  }
}

}  // namespace moebius
