// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/attention/span.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/model_config.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/weight_rows.h"

namespace moebius {

/// What attention needs to know of a model.
struct AttentionFacts {
  AttentionConfig config;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t span = 1024;
  int64_t key_block = 128;
  AttentionSum sum = AttentionSum::kCanonical;
  AttentionLayout layout = AttentionLayout::kZigzag;  // per-degree

  KeyWindow WindowOf(int64_t layer) const { return {config.WindowOf(layer)}; }
};

AttentionFacts AttentionFactsOf(const Checkpoint& checkpoint);

/// How so many ranks cut every session.
inline SpanGeometry GeometryOf(const AttentionFacts& facts, int32_t num_ranks) {
  const PromptMask mask = facts.config.is_causal ? PromptMask::kCausal : PromptMask::kWhole;
  return {facts.span, facts.key_block, facts.sum, num_ranks, facts.layout, mask};
}

/// INVALID_ARGUMENT or UNIMPLEMENTED in words when attention of these facts cannot be computed.
absl::Status ValidateAttentionFacts(const AttentionFacts& facts);

/// One layer's weights as a checkpoint stores them, [outputs, inputs]; model/parameters.h has the
/// shapes. What a model does not have is empty. Matrices that are multiplied as one (q, k, v; q or
/// q_a, kv_a) are of one type.
struct AttentionLayerWeights {
  WeightMatrix q, k, v, o;
  RowBatch<float> q_bias, k_bias, v_bias;
  RowBatch<Bf16> q_norm, k_norm;
  // MLA; q is there without q_lora.
  WeightMatrix q_a, q_b, kv_a, kv_b;
  RowBatch<Bf16> q_a_norm, kv_a_norm;
};

/// How a layer's matrices are stored: the blocks of those in FP8, null of others.
struct AttentionBlocks {
  std::optional<Fp8Rows> q, k, v, o;
  std::optional<Fp8Rows> q_a, q_b, kv_a, kv_b;
};

AttentionBlocks AttentionBlocksOf(const Checkpoint& checkpoint, int64_t layer);
AttentionBlocks AttentionBlocksOf(const AttentionLayerWeights& weights);

/// What is read of a layer: all, or only what is not packed (norms and biases).
enum class AttentionParts { kAll, kVectors };

absl::StatusOr<AttentionLayerWeights> LoadAttentionLayer(
    const Checkpoint& checkpoint, int64_t layer, AttentionParts parts = AttentionParts::kAll);

}  // namespace moebius
