// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int32_t kKeyBlock = 128;
constexpr int32_t kKeyBlockStep = 32;  // the block sum's block: P·V sums over a key block
constexpr int32_t kDefaultSpan = 1024;
constexpr int32_t kLargeLatentSpan = 4096;
constexpr int32_t kLargeLatentHeads = 64;
constexpr int32_t kContiguousGroups = 4;
constexpr int32_t kMaxSpan = 1 << 20;

Json IntegerList(const std::vector<int64_t>& values) {
  std::vector<Json> elements;
  for (const int64_t value : values) elements.push_back(Json::Integer(value));
  return Json::Array(std::move(elements));
}

absl::string_view GroupFillName(GroupFill fill) {
  return fill == GroupFill::kZero ? "zero" : "neg-inf";
}

Json GateFacts(const GateConfig& gate) {
  Json facts = Json::Object({});
  facts.Set("num_experts", Json::Integer(gate.num_experts));
  facts.Set("top_k", Json::Integer(gate.top_k));
  facts.Set("num_groups", Json::Integer(gate.num_groups));
  facts.Set("num_kept_groups", Json::Integer(gate.num_kept_groups));
  facts.Set("score", Json::String(ScoreFunctionName(gate.score_function)));
  facts.Set("correction_bias", Json::Boolean(gate.has_correction_bias));
  facts.Set("normalize", Json::Boolean(gate.normalize_weights));
  facts.Set("scaling", Json::Number(static_cast<double>(gate.routed_scaling_factor)));
  return facts;
}

Json RopeFacts(const RopeConfig& rope) {
  Json facts = Json::Object({});
  facts.Set("dim", Json::Integer(rope.dim));
  facts.Set("theta", Json::Number(rope.theta));
  facts.Set("pairing",
            Json::String(rope.pairing == RopePairing::kHalves ? "halves" : "interleaved"));
  if (rope.yarn.has_value()) {
    Json yarn = Json::Object({});
    yarn.Set("factor", Json::Number(rope.yarn->factor));
    yarn.Set("original_max_positions", Json::Integer(rope.yarn->original_max_positions));
    yarn.Set("beta_fast", Json::Number(rope.yarn->beta_fast));
    yarn.Set("beta_slow", Json::Number(rope.yarn->beta_slow));
    facts.Set("yarn", std::move(yarn));
  }
  return facts;
}

Json AttentionFacts(const AttentionConfig& attention) {
  Json facts = Json::Object({});
  facts.Set("query_heads", Json::Integer(attention.num_query_heads));
  facts.Set("kv_heads", Json::Integer(attention.num_kv_heads));
  facts.Set("qk_head_dim", Json::Integer(attention.qk_head_dim));
  facts.Set("v_head_dim", Json::Integer(attention.v_head_dim));
  facts.Set("softmax_scale", Json::Number(static_cast<double>(attention.softmax_scale)));
  facts.Set("rope_amplitude", Json::Number(static_cast<double>(attention.rope_amplitude)));
  facts.Set("qkv_bias", Json::Boolean(attention.qkv_bias));
  facts.Set("output_bias", Json::Boolean(attention.output_bias));
  facts.Set("qk_norm", Json::Integer(static_cast<int64_t>(attention.qk_norm)));
  if (attention.qk_norm != QkNorm::kNone) {
    facts.Set("qk_norm_eps", Json::Number(attention.qk_norm_eps));
  }
  facts.Set("rope", RopeFacts(attention.rope));
  if (attention.mla.has_value()) {
    Json mla = Json::Object({});
    mla.Set("q_lora_rank", Json::Integer(attention.mla->q_lora_rank));
    mla.Set("kv_lora_rank", Json::Integer(attention.mla->kv_lora_rank));
    mla.Set("qk_nope_dim", Json::Integer(attention.mla->qk_nope_dim));
    mla.Set("qk_rope_dim", Json::Integer(attention.mla->qk_rope_dim));
    mla.Set("lora_norm_eps", Json::Number(attention.mla->lora_norm_eps));
    facts.Set("mla", std::move(mla));
  }
  if (!attention.windows.empty()) facts.Set("windows", IntegerList(attention.windows));
  // The default is not said: its hashes are those from before there was another.
  if (!attention.is_causal) facts.Set("causal", Json::Boolean(false));
  return facts;
}

// A flag is the caller's fault, moebius.json the folder's.
absl::Status ResolveAttention(const FolderSettings& settings, const NumericsOverrides& overrides,
                              NumericsConfig* numerics) {
  std::string& sum = numerics->attention_sum;
  std::string& layout = numerics->attention_layout;
  sum = overrides.attention_sum.value_or(settings.attention_sum.value_or(sum));
  layout = overrides.attention_layout.value_or(settings.attention_layout.value_or(layout));
  const auto refuse = [](bool is_flag, const std::string& words) {
    absl::Status status = absl::InvalidArgumentError(words);
    return is_flag ? AsUsageError(std::move(status)) : status;
  };
  if (sum != "canonical" && sum != "per-degree") {
    const bool is_flag = overrides.attention_sum.has_value();
    return refuse(
        is_flag, absl::StrCat(is_flag ? "--attention-sum" : "moebius.json: attention_sum", " is \"",
                              PrintableName(sum), "\", it must be canonical or per-degree"));
  }
  const bool is_flag = overrides.attention_layout.has_value();
  const absl::string_view source =
      is_flag ? "--attention-layout" : "moebius.json: attention_layout";
  if (layout != "zigzag" && layout != "contiguous" && layout != "striped") {
    return refuse(is_flag, absl::StrCat(source, " is \"", PrintableName(layout),
                                        "\", it must be zigzag, contiguous or striped"));
  }
  if (sum == "canonical" && layout != "zigzag") {
    return WithHint(
        refuse(is_flag || overrides.attention_sum.has_value(),
               absl::StrCat(source, " is ", layout,
                            " and the attention sum canonical, whose shards follow the span rule")),
        "add --attention-sum per-degree, or --attention-layout zigzag");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GroupFill> ParseGroupFill(absl::string_view text) {
  if (text == "neg-inf") return GroupFill::kNegativeInfinity;
  if (text == "zero") return GroupFill::kZero;
  return absl::InvalidArgumentError(
      absl::StrCat("must be neg-inf or zero, it is \"", PrintableName(text), "\""));
}

std::string CanonicalConfigText(const ModelConfig& config) {
  Json facts = Json::Object({});
  // kimi_k2 is deepseek_v3 under another name; the numbers are the same.
  facts.Set("family", Json::String(FamilyName(config.family == Family::kKimiK2 ? Family::kDeepseekV3
                                                                               : config.family)));
  facts.Set("vocab_size", Json::Integer(config.vocab_size));
  facts.Set("hidden_size", Json::Integer(config.hidden_size));
  facts.Set("num_layers", Json::Integer(config.num_layers));
  facts.Set("max_positions", Json::Integer(config.max_positions));
  facts.Set("rms_norm_eps", Json::Number(config.rms_norm_eps));
  facts.Set("tied_head", Json::Boolean(config.tied_head));
  std::string layers;
  for (const bool is_moe : config.moe_layers) layers.push_back(is_moe ? 'm' : 'd');
  facts.Set("layers", Json::String(layers));
  facts.Set("dense_intermediate_size", Json::Integer(config.dense_intermediate_size));
  facts.Set("moe_intermediate_size", Json::Integer(config.moe_intermediate_size));
  facts.Set("num_shared_experts", Json::Integer(config.num_shared_experts));
  facts.Set("gate", GateFacts(config.gate));
  facts.Set("attention", AttentionFacts(config.attention));
  if (config.quantization.is_present()) {
    facts.Set("weight_block_size", Json::Array({Json::Integer(config.quantization.block_rows),
                                                Json::Integer(config.quantization.block_columns)}));
  }
  if (config.bos_token_id.has_value()) {
    facts.Set("bos_token_id", Json::Integer(*config.bos_token_id));
  }
  facts.Set("eos_token_ids", IntegerList(config.eos_token_ids));
  return facts.ToCanonicalText();
}

absl::StatusOr<NumericsConfig> ResolveNumerics(const ModelConfig& config,
                                               const FolderSettings& settings,
                                               const NumericsOverrides& overrides) {
  NumericsConfig numerics;
  const bool is_large_latent =
      config.attention.mla.has_value() && config.attention.num_query_heads >= kLargeLatentHeads;
  numerics.span = overrides.span.value_or(
      settings.span.value_or(is_large_latent ? kLargeLatentSpan : kDefaultSpan));
  const absl::string_view span_source =
      overrides.span.has_value() ? "--span" : "moebius.json: span";
  // A flag is the caller's fault, moebius.json the folder's.
  const auto refuse_span = [&](const std::string& rule) {
    absl::Status status = absl::InvalidArgumentError(
        absl::StrCat(span_source, " must be ", rule, ", it is ", numerics.span));
    return overrides.span.has_value() ? AsUsageError(std::move(status)) : status;
  };
  if (numerics.span < kKeyBlockStep || numerics.span > kMaxSpan) {
    return refuse_span(absl::StrCat("between ", kKeyBlockStep, " and ", kMaxSpan));
  }
  numerics.key_block = std::min(kKeyBlock, numerics.span);
  const int32_t unit = numerics.span < kKeyBlock ? kKeyBlockStep : kKeyBlock;
  if (numerics.span % unit != 0) {
    return refuse_span(absl::StrCat("a multiple of ", unit));
  }
  numerics.num_combine_groups = config.gate.num_groups > 1
                                    ? config.gate.num_groups
                                    : std::min(kContiguousGroups, config.gate.num_experts);
  numerics.slice_width = config.moe_intermediate_size;
  numerics.group_fill =
      overrides.group_fill.value_or(settings.group_fill.value_or(GroupFill::kNegativeInfinity));
  MOEBIUS_RETURN_IF_ERROR(ResolveAttention(settings, overrides, &numerics));
  return numerics;
}

std::string CanonicalNumericsText(const NumericsConfig& numerics, uint64_t model_hash) {
  Json facts = Json::Object({});
  facts.Set("span", Json::Integer(numerics.span));
  facts.Set("key_block", Json::Integer(numerics.key_block));
  facts.Set("combine_groups", Json::Integer(numerics.num_combine_groups));
  facts.Set("slice_width", Json::Integer(numerics.slice_width));
  facts.Set("group_fill", Json::String(GroupFillName(numerics.group_fill)));
  facts.Set("attention_sum", Json::String(numerics.attention_sum));
  // The canonical sum has no segments.
  if (numerics.attention_sum == "per-degree") {
    facts.Set("segment_blocks", Json::Integer(kSegmentBlocks));
  }
  // The default is not said: its hashes are those from before there were others.
  if (numerics.attention_layout != "zigzag") {
    facts.Set("attention_layout", Json::String(numerics.attention_layout));
  }
  facts.Set("dtype", Json::String(numerics.dtype));
  facts.Set("numeric_class", Json::String(numerics.numeric_class));
  facts.Set("model_hash", Json::String(FormatHash64(model_hash)));
  return facts.ToCanonicalText();
}

}  // namespace moebius
