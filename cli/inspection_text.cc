// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/model_inspect.h"
#include "cli/terminal.h"

#include "moebius/base/hash.h"
#include "moebius/model/json.h"
#include "moebius/tensor/dtype.h"

namespace moebius {
namespace {

/// "10.5 M".
std::string FormatParameters(int64_t count) {
  const double value = static_cast<double>(count);
  if (count >= 1'000'000'000) return absl::StrFormat("%.1f B", value / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.1f M", value / 1e6);
  return FormatCount(count);
}

absl::string_view MaskWords(const AttentionConfig& attention) {
  return attention.is_causal ? "" : ", not causal: a prompt's rows see all of it";
}

std::string AttentionLine(const AttentionConfig& attention) {
  if (attention.mla.has_value()) {
    return absl::StrCat(
        "latent, ", attention.num_query_heads, " heads of ", attention.mla->qk_nope_dim, " + ",
        attention.mla->qk_rope_dim, ", values ", attention.v_head_dim, ", kv rank ",
        attention.mla->kv_lora_rank,
        attention.mla->q_lora_rank > 0 ? absl::StrCat(", q rank ", attention.mla->q_lora_rank) : "",
        MaskWords(attention));
  }
  return absl::StrCat("grouped queries, ", attention.num_query_heads, " heads of ",
                      attention.qk_head_dim, ", ", attention.num_kv_heads, " key heads",
                      attention.rope.dim != attention.qk_head_dim
                          ? absl::StrCat(", ", attention.rope.dim, " elements rotate")
                          : "",
                      attention.qkv_bias ? ", biases" : "",
                      attention.qk_norm != QkNorm::kNone ? ", q/k norms" : "",
                      MaskWords(attention));
}

std::string ExpertLine(const ModelConfig& config) {
  const GateConfig& gate = config.gate;
  return absl::StrCat(
      gate.num_experts, " routed, top-", gate.top_k,
      gate.num_groups > 1
          ? absl::StrCat(" in ", gate.num_kept_groups, " of ", gate.num_groups, " groups")
          : "",
      config.num_shared_experts > 0 ? absl::StrCat(", ", config.num_shared_experts, " shared") : "",
      ", width ", config.moe_intermediate_size, ", ", ScoreFunctionName(gate.score_function),
      gate.has_correction_bias ? " + bias" : "", gate.normalize_weights ? ", renormalised" : "",
      gate.routed_scaling_factor != 1.0f
          ? absl::StrCat(", weights × ",
                         FormatNumber(static_cast<double>(static_cast<int64_t>(
                                          gate.routed_scaling_factor * 1e6f + 0.5f)) /
                                      1e6))
          : "");
}

/// "F8_E4M3 2.1 MB in blocks of 128 × 128, BF16 0.3 MB, F32 1.2 kB".
std::string TypeLine(const ModelInspection& inspection) {
  std::vector<std::string> types;
  for (const TypeSummary& type : inspection.types) {
    const QuantizationConfig& blocks = inspection.config.quantization;
    types.push_back(absl::StrCat(
        type.dtype, " ", FormatBytes(static_cast<int64_t>(type.stored_bytes)),
        type.dtype == DTypeName(DType::kF8E4M3)
            ? absl::StrCat(" in blocks of ", blocks.block_rows, " × ", blocks.block_columns)
            : ""));
  }
  return absl::StrJoin(types, ", ");
}

}  // namespace

std::string FormatInspection(const ModelInspection& inspection) {
  const ModelConfig& config = inspection.config;
  const int64_t num_sparse = std::count(config.moe_layers.begin(), config.moe_layers.end(), true);
  std::string out =
      absl::StrCat(inspection.folder, ": ", FamilyName(config.family), ", ",
                   FormatParameters(inspection.num_parameters), " parameters, ",
                   FormatParameters(inspection.num_active_parameters), " of them for one token, ",
                   FormatBytes(static_cast<int64_t>(inspection.stored_bytes)), " in ",
                   inspection.num_files, inspection.num_files == 1 ? " file\n" : " files\n");
  absl::StrAppend(
      &out, "  layers     ", config.num_layers, ", ", num_sparse, " of them sparse, hidden ",
      config.hidden_size, ", vocabulary ", FormatCount(config.vocab_size), ", context ",
      FormatCount(config.max_positions),
      config.attention.rope.yarn.has_value()
          ? absl::StrCat(" (YaRN × ", FormatNumber(config.attention.rope.yarn->factor), ")")
          : "",
      config.tied_head ? ", tied head" : "", "\n");
  absl::StrAppend(&out, "  attention  ", AttentionLine(config.attention), "\n");
  absl::StrAppend(&out, "  experts    ", ExpertLine(config), "\n");
  absl::StrAppend(&out, "  weights    ", TypeLine(inspection), "\n");
  absl::StrAppend(
      &out, "  text       ",
      inspection.tokenizer.empty() ? "no tokenizer: token ids only"
                                   : "tokenizer " + inspection.tokenizer,
      ", ends at ",
      config.eos_token_ids.empty() ? "no id" : absl::StrJoin(config.eos_token_ids, ", "),
      config.eos_source.empty() ? "" : absl::StrCat(" (", config.eos_source, ")"), "\n");
  absl::StrAppend(&out, "  sums       span ", inspection.numerics.span, ", key block ",
                  inspection.numerics.key_block, ", ", inspection.numerics.num_combine_groups,
                  " combine groups, slices of ", inspection.numerics.slice_width, "\n");
  absl::StrAppend(&out, "  hashes     model ", FormatHash64(inspection.model_hash), "  config ",
                  FormatHash64(inspection.config_hash), "\n");
  if (inspection.num_ignored_tensors > 0) {
    absl::StrAppend(&out, "  not read   ", inspection.num_ignored_tensors,
                    " tensors of the ignore list\n");
  }
  absl::StrAppendFormat(&out, "\n%-16s %9s %15s %11s\n", "parameters", "tensors", "count", "bytes");
  for (const KindSummary& kind : inspection.kinds) {
    absl::StrAppendFormat(&out, "  %-14s %9s %15s %11s\n", kind.kind, FormatCount(kind.num_tensors),
                          FormatCount(kind.num_parameters),
                          FormatBytes(static_cast<int64_t>(kind.stored_bytes)));
  }
  absl::StrAppend(&out, "  one expert of one layer: ", FormatBytes(inspection.expert_stored_bytes),
                  " stored, ", FormatBytes(inspection.expert_loaded_bytes), " loaded\n");
  absl::StrAppendFormat(&out, "\n%-28s %11s %11s %11s\n", "memory of each host", "weights", "KV",
                        "together");
  for (const HostNeed& need : inspection.needs) {
    const std::string role = need.role == "one process" || need.role == "router"
                                 ? need.role
                                 : absl::StrCat(need.role, " (", need.num_hosts, " of them)");
    absl::StrAppendFormat(&out, "  %-26s %11s %11s %11s\n", role, FormatBytes(need.weight_bytes),
                          need.kv_bytes > 0 ? FormatBytes(need.kv_bytes) : "-",
                          FormatBytes(need.total_bytes()));
  }
  absl::StrAppend(&out, "  KV pool of ", FormatCount(inspection.kv_tokens), " positions, ",
                  FormatBytes(inspection.kv_bytes_per_token), " each; every routed expert on ",
                  inspection.num_replicas, inspection.num_replicas == 1 ? " service" : " services",
                  ", shared experts and dense layers on all\n");
  return out;
}

std::string FormatInspectionJson(const ModelInspection& inspection) {
  const auto integer = [](auto value) { return Json::Integer(static_cast<int64_t>(value)); };
  Json object = Json::Object({});
  object.Set("folder", Json::String(inspection.folder));
  object.Set("family", Json::String(FamilyName(inspection.config.family)));
  object.Set("config", *Json::Parse(CanonicalConfigText(inspection.config), "config"));
  object.Set("eos_source", Json::String(inspection.config.eos_source));
  object.Set("tokenizer",
             inspection.tokenizer.empty() ? Json() : Json::String(inspection.tokenizer));
  object.Set("model_hash", Json::String(FormatHash64(inspection.model_hash)));
  object.Set("config_hash", Json::String(FormatHash64(inspection.config_hash)));
  object.Set(
      "numerics",
      *Json::Parse(CanonicalNumericsText(inspection.numerics, inspection.model_hash), "numerics"));
  object.Set("num_files", integer(inspection.num_files));
  object.Set("num_ignored_tensors", integer(inspection.num_ignored_tensors));
  object.Set("num_parameters", integer(inspection.num_parameters));
  object.Set("num_active_parameters", integer(inspection.num_active_parameters));
  object.Set("stored_bytes", integer(inspection.stored_bytes));
  object.Set("expert_stored_bytes", integer(inspection.expert_stored_bytes));
  object.Set("expert_loaded_bytes", integer(inspection.expert_loaded_bytes));
  object.Set("kv_bytes_per_token", integer(inspection.kv_bytes_per_token));
  object.Set("kv_tokens", integer(inspection.kv_tokens));
  const QuantizationConfig& blocks = inspection.config.quantization;
  object.Set("weight_block_size", blocks.is_present() ? Json::Array({integer(blocks.block_rows),
                                                                     integer(blocks.block_columns)})
                                                      : Json());
  std::vector<Json> types;
  for (const TypeSummary& type : inspection.types) {
    Json entry = Json::Object({});
    entry.Set("dtype", Json::String(type.dtype));
    entry.Set("num_tensors", integer(type.num_tensors));
    entry.Set("stored_bytes", integer(type.stored_bytes));
    types.push_back(std::move(entry));
  }
  object.Set("types", Json::Array(std::move(types)));
  std::vector<Json> kinds;
  for (const KindSummary& kind : inspection.kinds) {
    Json entry = Json::Object({});
    entry.Set("kind", Json::String(kind.kind));
    entry.Set("num_tensors", integer(kind.num_tensors));
    entry.Set("num_parameters", integer(kind.num_parameters));
    entry.Set("stored_bytes", integer(kind.stored_bytes));
    kinds.push_back(std::move(entry));
  }
  object.Set("kinds", Json::Array(std::move(kinds)));
  std::vector<Json> needs;
  for (const HostNeed& need : inspection.needs) {
    Json entry = Json::Object({});
    entry.Set("role", Json::String(need.role));
    entry.Set("num_hosts", integer(need.num_hosts));
    entry.Set("weight_bytes", integer(need.weight_bytes));
    entry.Set("kv_bytes", integer(need.kv_bytes));
    entry.Set("total_bytes", integer(need.total_bytes()));
    needs.push_back(std::move(entry));
  }
  object.Set("needs", Json::Array(std::move(needs)));
  return object.ToCanonicalText();
}

}  // namespace moebius
