// SPDX-License-Identifier: Apache-2.0
#include "cli/model_inspect.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/terminal.h"

#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kPanel = 32;  // kernels pad outputs and depth of a matrix to this

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t PackedBytes(int64_t outputs, int64_t depth) {
  return RoundUp(outputs, kPanel) * RoundUp(depth, kPanel) * 2;
}

/// Gate and up share panels, 16 columns of each; then down.
int64_t PackedExpertBytes(int64_t width, int64_t hidden) {
  return RoundUp(width, kPanel / 2) * 2 * RoundUp(hidden, kPanel) * 2 + PackedBytes(hidden, width);
}

absl::string_view KindOf(Part part) {
  switch (part) {
    case Part::kEmbedding:
      return "embedding";
    case Part::kHead:
      return "output head";
    case Part::kFinalNorm:
    case Part::kAttentionNorm:
    case Part::kFfnNorm:
      return "norms";
    case Part::kGate:
    case Part::kCorrectionBias:
      return "gates";
    case Part::kSharedGate:
    case Part::kSharedUp:
    case Part::kSharedDown:
      return "shared experts";
    case Part::kDenseGate:
    case Part::kDenseUp:
    case Part::kDenseDown:
      return "dense layers";
    case Part::kExpertGate:
    case Part::kExpertUp:
    case Part::kExpertDown:
      return "routed experts";
    default:
      return "attention";
  }
}

int64_t NumElements(const Parameter& parameter) {
  int64_t count = 1;
  for (const int64_t size : parameter.shape) count *= size;
  return count;
}

void SummariseKinds(const Checkpoint& checkpoint, ModelInspection& inspection) {
  const ModelConfig& config = checkpoint.config();
  std::map<std::string, KindSummary> kinds;
  for (const Parameter& parameter : checkpoint.match().parameters) {
    const std::string name(KindOf(parameter.key.part));
    KindSummary& kind = kinds[name];
    kind.kind = name;
    const int64_t elements = NumElements(parameter);
    const uint64_t bytes = checkpoint.directory().Find(parameter.name)->info->size_bytes;
    ++kind.num_tensors;
    kind.num_parameters += elements;
    kind.stored_bytes += bytes;
    inspection.num_parameters += elements;
    inspection.stored_bytes += bytes;
    if (parameter.key.expert == 0 && inspection.expert_stored_bytes >= 0) {
      // The three matrices of the first expert of the first sparse layer.
      const bool is_first = config.moe_layers[static_cast<size_t>(parameter.key.layer)] &&
                            std::find(config.moe_layers.begin(), config.moe_layers.end(), true) -
                                    config.moe_layers.begin() ==
                                parameter.key.layer;
      if (is_first) inspection.expert_stored_bytes += static_cast<int64_t>(bytes);
    }
  }
  const int64_t routed = kinds["routed experts"].num_parameters;
  inspection.num_active_parameters =
      inspection.num_parameters - routed + routed / config.gate.num_experts * config.gate.top_k;
  for (const char* name : {"embedding", "attention", "norms", "gates", "routed experts",
                           "shared experts", "dense layers", "output head"}) {
    if (kinds.count(name) > 0) inspection.kinds.push_back(kinds[name]);
  }
}

int64_t AttentionWeightBytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const Parameter& parameter : checkpoint.match().parameters) {
    if (KindOf(parameter.key.part) != "attention") continue;
    bytes += parameter.shape.size() == 2 ? PackedBytes(parameter.shape[0], parameter.shape[1])
                                         : parameter.shape[0] * 4;
  }
  return bytes;
}

int64_t RouterWeightBytes(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  // The head is packed for products, the embedding is read by row: a tied pair is held twice.
  int64_t bytes = config.vocab_size * config.hidden_size * 2 +
                  PackedBytes(config.vocab_size, config.hidden_size);
  for (const Parameter& parameter : checkpoint.match().parameters) {
    const absl::string_view kind = KindOf(parameter.key.part);
    if (kind == "gates" || kind == "norms") bytes += NumElements(parameter) * 4;
  }
  return bytes;
}

int64_t KvBytesPerToken(const ModelConfig& config) {
  const AttentionConfig& attention = config.attention;
  const int64_t elements =
      attention.mla.has_value()
          ? RoundUp(attention.mla->kv_lora_rank + attention.mla->qk_rope_dim, kPanel)
          : attention.num_kv_heads *
                (RoundUp(attention.qk_head_dim, kPanel) + RoundUp(attention.v_head_dim, kPanel));
  return elements * 2 * config.num_layers;
}

void PlanHosts(const Checkpoint& checkpoint, const InspectionPlan& plan,
               ModelInspection& inspection) {
  const ModelConfig& config = checkpoint.config();
  const int64_t hidden = config.hidden_size;
  const int64_t num_sparse = std::count(config.moe_layers.begin(), config.moe_layers.end(), true);
  const int64_t expert = PackedExpertBytes(config.moe_intermediate_size, hidden);
  inspection.expert_loaded_bytes = expert;
  int64_t slices = num_sparse * config.num_shared_experts * expert;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.IsMoeLayer(layer)) continue;
    for (int64_t slice = 0; slice < config.NumDenseSlices(); ++slice) {
      const int64_t width =
          std::min(config.moe_intermediate_size,
                   config.dense_intermediate_size - slice * config.moe_intermediate_size);
      slices += PackedExpertBytes(width, hidden);
    }
  }
  const int64_t routed = config.gate.num_experts;
  const int64_t per_service =
      std::min(routed, (routed * plan.num_replicas + plan.num_experts - 1) / plan.num_experts);
  const int64_t kv = inspection.kv_bytes_per_token * inspection.kv_tokens;
  const int64_t attention = AttentionWeightBytes(checkpoint);
  const int64_t router = RouterWeightBytes(checkpoint);
  const int64_t all_experts = num_sparse * routed * expert + slices;
  inspection.needs = {
      {"one process", 1, router + attention + all_experts, kv},
      {"router", 1, router, 0},
      {"attention", plan.num_attention, attention,
       (kv + plan.num_attention - 1) / plan.num_attention},
      {"expert", plan.num_experts, num_sparse * per_service * expert + slices, 0},
  };
}

absl::Status ValidatePlan(const InspectionPlan& plan) {
  if (plan.num_experts < 1 || plan.num_attention < 1 || plan.num_replicas < 1 ||
      plan.kv_tokens < 0) {
    return absl::InvalidArgumentError(
        "--experts, --attention and --replicas must be at least 1, --kv-tokens at least 0");
  }
  if (plan.num_replicas > plan.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("--replicas is ", plan.num_replicas,
                                                   ", there are only ", plan.num_experts,
                                                   " expert services"));
  }
  return absl::OkStatus();
}

/// "10.5 M".
std::string FormatParameters(int64_t count) {
  const double value = static_cast<double>(count);
  if (count >= 1'000'000'000) return absl::StrFormat("%.1f B", value / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.1f M", value / 1e6);
  return FormatCount(count);
}

std::string AttentionLine(const AttentionConfig& attention) {
  if (attention.mla.has_value()) {
    return absl::StrCat("latent, ", attention.num_query_heads, " heads of ",
                        attention.mla->qk_nope_dim, " + ", attention.mla->qk_rope_dim, ", values ",
                        attention.v_head_dim, ", kv rank ", attention.mla->kv_lora_rank,
                        attention.mla->q_lora_rank > 0
                            ? absl::StrCat(", q rank ", attention.mla->q_lora_rank)
                            : "");
  }
  return absl::StrCat("grouped queries, ", attention.num_query_heads, " heads of ",
                      attention.qk_head_dim, ", ", attention.num_kv_heads, " key heads",
                      attention.rope.dim != attention.qk_head_dim
                          ? absl::StrCat(", ", attention.rope.dim, " elements rotate")
                          : "",
                      attention.qkv_bias ? ", biases" : "",
                      attention.qk_norm != QkNorm::kNone ? ", q/k norms" : "");
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

}  // namespace

absl::StatusOr<ModelInspection> InspectModel(const Checkpoint& checkpoint,
                                             const InspectionPlan& plan) {
  MOEBIUS_RETURN_IF_ERROR(ValidatePlan(plan));
  ModelInspection inspection;
  inspection.folder = checkpoint.folder();
  inspection.config = checkpoint.config();
  inspection.numerics = checkpoint.numerics();
  inspection.tokenizer = checkpoint.settings().tokenizer.value_or("");
  inspection.model_hash = checkpoint.model_hash();
  inspection.config_hash = checkpoint.config_hash();
  inspection.num_files = static_cast<int64_t>(checkpoint.directory().files().size());
  inspection.num_ignored_tensors = checkpoint.match().num_ignored;
  inspection.kv_bytes_per_token = KvBytesPerToken(checkpoint.config());
  inspection.kv_tokens = plan.kv_tokens > 0 ? plan.kv_tokens : checkpoint.config().max_positions;
  inspection.num_replicas = plan.num_replicas;
  SummariseKinds(checkpoint, inspection);
  PlanHosts(checkpoint, plan, inspection);
  return inspection;
}

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
