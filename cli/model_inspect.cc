// SPDX-License-Identifier: Apache-2.0
#include "cli/model_inspect.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/packed_matrix.h"

namespace moebius {
namespace {

constexpr int64_t kPanel = 32;  // kernels pad outputs and depth of a matrix to this

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t LoadedBytes(int64_t outputs, int64_t depth, const std::optional<Fp8Rows>& blocks) {
  return static_cast<int64_t>(
      PackedLayout::Of(outputs, depth, blocks, PairOrder::kAdjacent).bytes());
}

/// Gate and up share panels, 16 columns of each; then down.
int64_t LoadedExpertBytes(const Checkpoint& checkpoint, int64_t layer, int64_t id) {
  const LayerId layer_id(static_cast<int32_t>(layer));
  const ExpertId expert_id(static_cast<int32_t>(id));
  const auto& [gate_up, down] = checkpoint.BlocksOf(layer_id, expert_id);
  return PackedExpert::BytesOf({.intermediate_size = checkpoint.SliceWidth(layer_id, expert_id),
                                .hidden_size = checkpoint.config().hidden_size,
                                .gate_up = gate_up,
                                .down = down});
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

/// Adds a tensor to those of its type and returns its bytes.
uint64_t CountStored(const TensorInfo& tensor, ModelInspection& inspection) {
  auto found =
      std::find_if(inspection.types.begin(), inspection.types.end(),
                   [&](const TypeSummary& type) { return type.dtype == tensor.dtype_name; });
  if (found == inspection.types.end()) {
    found = inspection.types.insert(found, TypeSummary{tensor.dtype_name, 0, 0});
  }
  ++found->num_tensors;
  found->stored_bytes += tensor.size_bytes;
  return tensor.size_bytes;
}

void SummariseKinds(const Checkpoint& checkpoint, ModelInspection& inspection) {
  const ModelConfig& config = checkpoint.config();
  std::map<std::string, KindSummary> kinds;
  for (const Parameter& parameter : checkpoint.match().parameters) {
    const std::string name(KindOf(parameter.key.part));
    KindSummary& kind = kinds[name];
    kind.kind = name;
    const int64_t elements = NumElements(parameter);
    uint64_t bytes = CountStored(*checkpoint.directory().Find(parameter.name)->info, inspection);
    ++kind.num_tensors;
    if (parameter.is_fp8()) {
      bytes += CountStored(*checkpoint.directory().Find(parameter.scale_name)->info, inspection);
      ++kind.num_tensors;
    }
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
    std::optional<Fp8Rows> blocks;
    if (parameter.is_fp8()) {
      blocks.emplace();
      blocks->block_columns = checkpoint.config().quantization.block_columns;
    }
    bytes += parameter.shape.size() == 2
                 ? LoadedBytes(parameter.shape[0], parameter.shape[1], blocks)
                 : parameter.shape[0] * 4;
  }
  return bytes;
}

int64_t RouterWeightBytes(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  // The head is packed for products, the embedding is read by row: a tied pair is held twice.
  int64_t bytes = config.vocab_size * config.hidden_size * 2 +
                  LoadedBytes(config.vocab_size, config.hidden_size, std::nullopt);
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
  const int64_t num_sparse = std::count(config.moe_layers.begin(), config.moe_layers.end(), true);
  const auto first_sparse = std::find(config.moe_layers.begin(), config.moe_layers.end(), true);
  const int64_t expert =
      first_sparse == config.moe_layers.end()
          ? 0
          : LoadedExpertBytes(checkpoint, first_sparse - config.moe_layers.begin(), 0);
  inspection.expert_loaded_bytes = expert;
  int64_t slices = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int64_t slice = 0; slice < checkpoint.NumSlices(LayerId(layer)); ++slice) {
      slices += LoadedExpertBytes(checkpoint, layer, config.gate.num_experts + slice);
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
  std::sort(inspection.types.begin(), inspection.types.end(),
            [](const TypeSummary& a, const TypeSummary& b) {
              return a.stored_bytes != b.stored_bytes ? a.stored_bytes > b.stored_bytes
                                                      : a.dtype < b.dtype;
            });
  PlanHosts(checkpoint, plan, inspection);
  return inspection;
}

}  // namespace moebius
