// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "attention_service/attention_weights.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/tensor/bf16.h"

namespace moebius {

/// One MLA head's part of kv_b, in the three products that need it.
struct LatentHead {
  PackedMatrix key_up;      // W_uk [nope, rank]: latent → k_nope (expanded form)
  PackedMatrix query_down;  // W_uk transposed [rank, nope]: q_nope → q_abs (absorbed form)
  PackedMatrix value_up;    // W_uv [v_head_dim, rank]: latent → v, and span acc → output
};

/// One layer's attention weights, packed for one tier. Immutable after Pack. Its matrices have
/// allocations of their own, or lie one after the other in storage of somebody who outlives it.
///
/// `input` is every projection of the normed row in one matrix, outputs in this order:
///   grouped-query: q, k, v;  MLA: q_a (or q without q_lora), latent, roped key.
struct PackedAttentionLayer {
  PackedMatrix input;
  std::vector<float> input_bias;  // [outputs of input], or empty
  std::vector<Bf16> q_norm, k_norm;
  std::vector<Bf16> q_a_norm, latent_norm;
  PackedMatrix q_b;  // [heads * qk_head_dim, q_lora_rank], or empty
  std::vector<LatentHead> heads;
  PackedMatrix output;

  /// INVALID_ARGUMENT, naming the matrix, when a shape does not follow from the facts. `storage`:
  /// BytesOf(facts, AttentionBlocksOf(weights)) zero bytes, 64-byte aligned; empty: allocations.
  static absl::StatusOr<PackedAttentionLayer> Pack(const AttentionFacts& facts,
                                                   const AttentionLayerWeights& weights,
                                                   PairOrder order,
                                                   absl::Span<uint8_t> storage = {});
  /// What Pack has left in `storage`, or a copy of that, of matrices that were stored in `blocks`.
  /// Of `weights` the norms and biases are needed alone.
  static absl::StatusOr<PackedAttentionLayer> View(const AttentionFacts& facts,
                                                   const AttentionLayerWeights& weights,
                                                   const AttentionBlocks& blocks, PairOrder order,
                                                   absl::Span<uint8_t> storage);
  static int64_t BytesOf(const AttentionFacts& facts, const AttentionBlocks& blocks);
  int64_t bytes() const;
};

}  // namespace moebius
