// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/model/model_config.h"
#include "moebius/model/parameters.h"
#include "moebius/tensor/dtype.h"

namespace moebius {

/// Sizes of a checkpoint to make. Zero means the small default in the comment.
struct RandomCheckpointOptions {
  Family family = Family::kDeepseekV3;
  int64_t num_layers = 0;     // 2
  int64_t hidden_size = 0;    // 64
  int64_t vocab_size = 0;     // 320
  int64_t max_positions = 0;  // 512
  int64_t num_heads = 0;      // 4
  int64_t num_kv_heads = 0;   // 2; MLA has one per head
  int64_t head_dim = 0;       // 16; MLA: nope and value dim, half of it (even) rotates
  int64_t q_lora_rank = 0;    // MLA: 2 · head_dim
  int64_t kv_lora_rank = 0;   // MLA: 2 · head_dim
  int64_t rope_dim = 0;       // MLA: half of head_dim, even
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
  int64_t num_experts = 0;              // 8
  int64_t top_k = 0;                    // 2
  int64_t num_groups = 0;               // 1; DeepSeek-V3 and its like only
  int64_t num_kept_groups = 0;          // 1
  int64_t num_shared_experts = -1;      // -1: 1 where the family has them
  int64_t moe_intermediate_size = 0;    // 32
  int64_t num_dense_layers = -1;        // -1: 1 where the family has them and layers allow
  int64_t dense_intermediate_size = 0;  // 2.5 · moe_intermediate_size
  bool tied_head = false;
  bool byte_tokenizer = true;  // says so in moebius.json, where the vocabulary has 256 ids or more
  int64_t span = 128;          // beside it; 0: the default of all models
  /// kBF16, kF16, kF32, or kF8E4M3: matrices of attention and feed-forward networks in FP8 with
  /// block scales, all others in bf16. The correction bias is always fp32.
  DType dtype = DType::kBF16;
  int64_t block_rows = 128;  // of FP8
  int64_t block_columns = 128;
  int64_t num_shards = 0;  // as many as keep a file below 5 GB
  uint64_t seed = 0;
};

/// The config.json of such a checkpoint, in the form with rope_theta. Pure.
std::string RandomConfigText(const RandomCheckpointOptions& options);
/// The generation_config.json beside it. Pure.
std::string RandomGenerationText(const RandomCheckpointOptions& options);

/// `count` stored elements of `parameter` from element `begin` on, in `dtype`: norms near 1, the
/// rest roughly normal with deviation 1/sqrt(inputs), never zero. Depends on the seed, the tensor's
/// name and the element alone. `out` has count * DTypeBytes(dtype) bytes. Pure.
void FillRandomElements(const Parameter& parameter, DType dtype, uint64_t seed, uint64_t begin,
                        uint64_t count, absl::Span<uint8_t> out);

/// Scales [rows, columns] of `parameter` in blocks, as FillRandomElements gives its codes for
/// kF8E4M3: weights are then as those of other types. Depends on the seed and the tensor's name
/// alone. Pure.
std::vector<float> RandomScales(const Parameter& parameter, const QuantizationConfig& quantization,
                                uint64_t seed);

/// Called with bytes written so far and in all.
using WriteProgress = std::function<void(uint64_t done, uint64_t total)>;

/// OK where the sizes make a model of the family, else what WriteRandomCheckpoint would refuse.
/// Pure.
absl::Status CheckRandomCheckpoint(const RandomCheckpointOptions& options);

/// Bytes of the weights that WriteRandomCheckpoint would write. The status is
/// CheckRandomCheckpoint's. Pure.
absl::StatusOr<uint64_t> RandomCheckpointBytes(const RandomCheckpointOptions& options);

/// Writes config.json, generation_config.json, moebius.json and the weights, streaming: memory does
/// not grow with the model. The folder is made; ALREADY_EXISTS where it has a config.json.
/// RESOURCE_EXHAUSTED, before anything is made, where the file system has no room for it.
/// INVALID_ARGUMENT names the field that the sizes contradict.
absl::Status WriteRandomCheckpoint(const std::string& folder,
                                   const RandomCheckpointOptions& options,
                                   const WriteProgress& on_progress = nullptr);

}  // namespace moebius
