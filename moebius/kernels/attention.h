// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

/// The canonical sum of attention (docs/numerics.md), one key block at a time. Everything here runs
/// on an executor thread and is thread-safe for disjoint outputs and scratches.
namespace moebius {

/// Widths and constants of one attention head over one kind of keys.
struct SpanShape {
  int64_t key_width = 0;    // elements of q and k that the score sums over
  int64_t value_width = 0;  // elements of v
  int64_t key_block = 0;    // B: keys of a block, a multiple of 32
  float scale = 1.0f;       // multiplies the fp32 score

  int64_t padded_key_width() const { return (key_width + 31) / 32 * 32; }
  int64_t padded_value_width() const { return (value_width + 31) / 32 * 32; }
  /// Elements of one block's packed keys: B / 32 panels over tokens.
  int64_t key_block_elements() const { return key_block * padded_key_width(); }
  /// Elements of one block's packed values: panels over value elements, summed over keys.
  int64_t value_block_elements() const { return key_block * padded_value_width(); }
};

/// States (m, l, acc) of rows over one span, natural-log units; attention/merge.h says what they
/// mean. Memory of the caller.
struct SpanStates {
  MutableFloatRows acc;  // [num_rows, value_width]
  absl::Span<float> m;   // [num_rows]
  absl::Span<float> l;   // [num_rows]

  SpanStates Slice(int64_t begin, int64_t end) const {
    const size_t size = static_cast<size_t>(end - begin);
    return {acc.Slice(begin, end), m.subspan(static_cast<size_t>(begin), size),
            l.subspan(static_cast<size_t>(begin), size)};
  }
};

/// Makes every state empty: m = −inf, l and acc +0.
void ClearStates(SpanStates states);

/// Most query rows of one tile.
inline constexpr int64_t kMaxTileRows = 64;

/// Up to kMaxTileRows queries in the form that a tier's kernel reads. Reusable; not thread-safe
/// while Prepare runs.
class QueryTile {
 public:
  /// `queries` [num_rows <= kMaxTileRows, key_width].
  void Prepare(const Kernels& kernels, Bf16Rows queries);
  int64_t num_rows() const { return num_rows_; }
  const void* data() const { return prepared_.data(); }

 private:
  Array<uint8_t> prepared_;
  int64_t num_rows_ = 0;
};

/// Memory that one thread reuses between calls.
struct SpanScratch {
  Array<float> scores;     // [kMaxTileRows, B]
  Array<uint8_t> weights;  // [kMaxTileRows, B]: P as the kernel reads it
  float alphas[kMaxTileRows] = {};
  bool sees[kMaxTileRows] = {};  // the row a key

  void Reserve(const Kernels& kernels, const SpanShape& shape);
};

/// Takes one packed key block into the states of a tile's rows: row r sees the block's keys
/// visible[r]; none leaves its state untouched. For the others
///   s_j = blocksum(q, k_j) · scale, hidden keys left out by selection;
///   M = max(m, max_j s_j);  α = Exp(m − M);  p_j = Exp(s_j − M), +0 where hidden;
///   l = l·α + Σ p_j, in 16 chains j mod 16, folded by halves;
///   acc = fma(acc, α, blocksum over the block's B keys of bf16(p_j)·v_j);  m = M.
/// A span's state is ClearStates, then its key blocks in ascending order. Its bits do not depend on
/// the tier, the tile or the tile's company.
/// `keys` [key_block_elements] and `values` [value_block_elements] are 64-byte aligned; hidden keys
/// are finite, values of absent keys +0. Few rows ask for `next_keys`, those of the block that is
/// taken next, while they read the values; null: not known.
void AccumulateKeyBlock(const Kernels& kernels, const SpanShape& shape, const QueryTile& queries,
                        absl::Span<const VisibleKeys> visible, const Bf16* keys, const Bf16* values,
                        const Bf16* next_keys, SpanScratch& scratch, SpanStates states);

/// Writes key `token` in [0, B) of a block: `key` [key_width], +0 up to the padded width.
void StoreKey(PairOrder order, const SpanShape& shape, const Bf16* key, int64_t token, Bf16* block);
/// Writes value `token` in [0, B) of a block, `value` [value_width]; null writes +0.
void StoreValue(PairOrder order, const SpanShape& shape, const Bf16* value, int64_t token,
                Bf16* block);
/// Packs a whole block from rows [num_rows <= B, width]; absent rows become +0.
void PackKeyBlock(PairOrder order, const SpanShape& shape, Bf16Rows keys, Bf16* block);
void PackValueBlock(PairOrder order, const SpanShape& shape, Bf16Rows values, Bf16* block);
/// The inverse for the tokens from `token_begin` on: `keys` [num_rows, key_width], `values`
/// [num_rows, value_width], token_begin + num_rows <= B.
void UnpackKeys(PairOrder order, const SpanShape& shape, const Bf16* block, int64_t token_begin,
                MutableBf16Rows keys);
void UnpackValues(PairOrder order, const SpanShape& shape, const Bf16* block, int64_t token_begin,
                  MutableBf16Rows values);

}  // namespace moebius
