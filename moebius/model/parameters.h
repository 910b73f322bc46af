// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "moebius/model/model_config.h"
#include "moebius/model/safetensors.h"

namespace moebius {

/// What a parameter is, whatever a family calls it. Shapes are [outputs, inputs]; H hidden size,
/// I moe_intermediate_size, D dense_intermediate_size, n shared experts.
enum class Part {
  // Of the model; layer and expert are -1.
  kEmbedding,  // [vocab, H]
  kFinalNorm,  // [H]
  kHead,       // [vocab, H]; the embedding itself in tied models
  // Of a layer; expert is -1.
  kAttentionNorm,  // [H], before attention
  kFfnNorm,        // [H], before the feed-forward part
  kQ,              // [heads * qk_head_dim, H]; MLA without q_lora too
  kK,              // [kv heads * qk_head_dim, H]
  kV,              // [kv heads * v_head_dim, H]
  kO,              // [H, heads * v_head_dim]
  kQBias,          // [heads * qk_head_dim]
  kKBias,
  kVBias,
  kQNorm,  // [qk_head_dim], or the whole projection's width
  kKNorm,
  kQA,              // [q_lora_rank, H], MLA
  kQANorm,          // [q_lora_rank]
  kQB,              // [heads * (nope + rope), q_lora_rank]; per head nope, then rope
  kKvA,             // [kv_lora_rank + rope, H]; latent, then the rope key that all heads share
  kKvANorm,         // [kv_lora_rank]
  kKvB,             // [heads * (nope + v_head_dim), kv_lora_rank]; per head k_nope, then v
  kGate,            // [E, H], bf16 or fp32 as stored
  kCorrectionBias,  // [E], fp32
  kSharedGate,      // [n·I, H]
  kSharedUp,        // [n·I, H]
  kSharedDown,      // [H, n·I]
  kDenseGate,       // [D, H]
  kDenseUp,         // [D, H]
  kDenseDown,       // [H, D]
  // Of an expert in [0, E).
  kExpertGate,  // [I, H]
  kExpertUp,    // [I, H]
  kExpertDown,  // [H, I]
};

/// "q projection", "expert down", …, for reports.
absl::string_view PartName(Part part);

struct ParameterKey {
  Part part = Part::kEmbedding;
  int32_t layer = -1;
  int32_t expert = -1;
  friend auto operator<=>(const ParameterKey&, const ParameterKey&) = default;
};

/// One parameter that a model of this configuration has.
struct Parameter {
  ParameterKey key;
  std::string name;            // of its tensor in the files
  std::vector<int64_t> shape;  // one or two dimensions
  bool keeps_float = false;    // gate and correction bias: never rounded below what is stored
  /// The tensor of its scales where it is stored in F8_E4M3, as MatchParameters found it; else
  /// empty.
  std::string scale_name;
  bool is_fp8() const { return !scale_name.empty(); }
};

/// Every parameter, in a fixed order (embedding, layers ascending, final norm, head). Pure.
std::vector<Parameter> ExpectedParameters(const ModelConfig& config);

/// The name of one parameter's tensor. Pure.
std::string TensorName(const ModelConfig& config, const ParameterKey& key);

/// N of "model.layers.N.…", or -1.
int64_t LayerOfTensor(absl::string_view tensor_name);

/// Whether a tensor that no parameter names may be left unread, by the written list of
/// docs/model_format.md. Returns the rule, or an empty string. "next-token layer" holds only where
/// that layer has the module's own eh_proj.weight as well.
absl::string_view IgnoreRule(const ModelConfig& config, absl::string_view tensor_name);

/// How the tensors of a folder fill a configuration's parameters.
struct ParameterMatch {
  std::vector<Parameter> parameters;
  int64_t num_ignored = 0;
  uint64_t ignored_bytes = 0;
};

/// What a match may accept beyond the rule "everything consumed, everything filled once".
struct MatchOptions {
  bool convert_to_bf16 = false;   // F16 and F32 weights in the bf16 path
  bool reads_as_stored = false;   // only LoadFloat will be called: any of BF16, F16, F32
  bool tie_missing_head = false;  // an absent head is the embedding, by explicit wish
};

/// Matches by name, type and shape. `tensors` ascending by name. A refusal (UNIMPLEMENTED for a
/// type or a fused layout, else INVALID_ARGUMENT) counts missing, unexpected and mis-shaped tensors
/// and names the first five of each. `config.tied_head` becomes true where tie_missing_head
/// applied.
absl::Status MatchParameters(const std::vector<const TensorInfo*>& tensors,
                             const MatchOptions& options, ModelConfig& config,
                             ParameterMatch& match);

}  // namespace moebius
