// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "attention_service/attention_weights.h"
#include "attention_service/kv_cache.h"
#include "attention_service/packed_attention.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/rope.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// From a layer's normed rows to its queries, and its keys and values into the KV cache. Rounded to
/// bf16, once each: a projection (its bias added in fp32; the latent only after its norm), a norm,
/// a rotation.
/// Not thread-safe; runs on the executor.
class Projections {
 public:
  Projections(const AttentionFacts& facts, const KvLayout& layout, const Kernels& kernels,
              Executor& executor);

  /// Fills the rotary table for the step's rows: those that this rank owns, in order. The step is
  /// open in the cache.
  void BeginStep(absl::Span<const RoleRows> rows, const KvCache& cache);

  /// Returns the rotated queries [num_rows, heads * qk_head_dim], valid until the next call.
  Bf16Rows Run(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows normed,
               const KvCache& cache);

 private:
  // Where a row's key and value are kept.
  struct RowHome {
    int64_t session_index = 0;
    KvCache::Home home;
  };

  Bf16Rows RunGrouped(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows normed,
                      const KvCache& cache);
  Bf16Rows RunLatent(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows normed,
                     const KvCache& cache);
  void StoreLatentRow(const PackedAttentionLayer& weights, int64_t layer, int64_t row,
                      const KvCache& cache);
  void Rotate(RopeHeads heads, MutableBf16Rows rows, int64_t row_begin) const;
  Bf16* HomeBlock(const KvCache& cache, int64_t row, int64_t layer) const;
  // Calls body(row_begin, row_end) for tiles of rows, in parallel where there are several.
  template <typename Body>
  void ForRowTiles(int64_t num_rows, const Body& body);

  AttentionFacts facts_;
  KvLayout layout_;
  const Kernels& kernels_;
  Executor& executor_;
  int64_t q_width_ = 0;  // of q, or of q_a under MLA with q_lora
  RopePairs pairs_;
  RopeTable rope_;
  std::vector<RowHome> homes_;
  std::vector<int64_t> positions_;  // of the same rows
  RowBatch<Bf16> inputs_;           // [num_rows, q, k, v], grouped-query
  RowBatch<float> compressed_;      // [num_rows, q or q_a, latent, rope key], MLA: not yet rounded
  RowBatch<Bf16> rope_keys_;        // [num_rows, qk_rope_dim], MLA
  RowBatch<Bf16> q_latents_;        // [num_rows, q_lora_rank], normed, MLA with q_lora
  RowBatch<Bf16> queries_;          // [num_rows, heads * qk_head_dim], MLA
};

}  // namespace moebius
