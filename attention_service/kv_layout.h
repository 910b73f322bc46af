// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention_service/attention_weights.h"
#include "moebius/attention/head_map.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// What lies in one layer of a KV block: `key_block` positions of one session, bf16.
///
/// Grouped-query models: per KV head the packed keys, then per KV head the packed values (as
/// kernels/attention.h reads them). MLA: a row per position, [normed latent | roped key], padded to
/// a multiple of 32 elements; keys and values are made from it block by block when they are used.
/// Pure; a value.
class KvLayout {
 public:
  KvLayout() = default;
  KvLayout(const AttentionFacts& facts, PairOrder order);

  bool is_latent() const { return latent_width_ > 0; }
  /// Elements of one layer of one block, a multiple of 32.
  int64_t layer_elements() const { return layer_elements_; }
  /// Shape of one head over the cached keys. MLA: absorbed form, [latent | rope] keys and latent
  /// values.
  const SpanShape& shape() const { return shape_; }

  const Bf16* keys(const Bf16* layer, int64_t kv_head) const {
    return layer + kv_head * shape_.key_block_elements();
  }
  const Bf16* values(const Bf16* layer, int64_t kv_head) const {
    return layer + num_kv_heads_ * shape_.key_block_elements() +
           kv_head * shape_.value_block_elements();
  }
  /// MLA: the rows [num_rows, rank + rope] of a block's first positions.
  MutableBf16Rows latents(Bf16* layer, int64_t num_rows) const {
    return MutableBf16Rows(layer, num_rows, latent_width_, latent_stride_);
  }
  Bf16Rows latents(const Bf16* layer, int64_t num_rows) const {
    return Bf16Rows(layer, num_rows, latent_width_, latent_stride_);
  }

  /// All KV heads; a latent counts as one.
  HeadRange all_heads() const { return {0, static_cast<int32_t>(num_kv_heads_)}; }
  /// What one position of a layer takes when it travels, the same for every tier: k of the KV
  /// heads, then v of them; MLA: [latent | rope].
  int64_t row_width(HeadRange heads) const;
  int64_t row_width() const { return row_width(all_heads()); }
  /// Positions [token_begin, token_begin + rows.num_rows) of a block as such rows.
  void ReadRows(const Bf16* layer, int64_t token_begin, HeadRange heads,
                MutableBf16Rows rows) const;
  /// Writes those heads of a block from the rows of its first positions; the others become absent:
  /// +0, as a key that is hidden is weighed with 0 and a NaN would stay one. Other heads stay as
  /// they are.
  void WriteBlock(Bf16Rows rows, HeadRange heads, Bf16* layer) const;

  /// Writes position `token` in [0, key_block): k [kv heads * key_width], v [kv heads *
  /// value_width].
  void StoreGrouped(const Bf16* k, const Bf16* v, int64_t token, Bf16* layer) const;
  /// Makes positions [token, key_block) absent: +0.
  void ClearFrom(int64_t token, Bf16* layer) const;

 private:
  PairOrder order_ = PairOrder::kAdjacent;
  SpanShape shape_;
  int64_t num_kv_heads_ = 0;
  int64_t latent_width_ = 0;  // 0: grouped
  int64_t latent_stride_ = 0;
  int64_t layer_elements_ = 0;
};

}  // namespace moebius
