// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

namespace moebius {

struct Kernels;

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

/// The packed key blocks of one span, ascending; as many as hold visible keys. Every block is
/// whole: keys beyond a session's last one are finite, values there are +0.
struct SpanBlocks {
  absl::Span<const Bf16* const> keys;    // each [key_block_elements]
  absl::Span<const Bf16* const> values;  // each [value_block_elements]
};

/// (acc, m, l) of rows over one span; attention/merge.h says what they mean.
struct SpanStates {
  MutableFloatRows acc;  // [num_rows, value_width], stride >= padded_value_width
  absl::Span<float> m;   // [num_rows]
  absl::Span<float> l;   // [num_rows]
};

/// Memory that one thread reuses between calls.
class SpanScratch {
 public:
  void Reserve(int64_t num_rows, const SpanShape& shape);

  Array<float> scores;    // [num_rows, B]
  Array<Bf16> weights;    // [num_rows, B], P
  Array<float> products;  // [num_rows, padded_value_width], P·V
  Array<float> alphas;    // [num_rows]
};

/// The canonical sum over one span, for any number of rows. `queries` [num_rows, key_width] with
/// stride >= padded_key_width and +0 in between; row r sees the first num_visible[r] >= 0 keys of
/// the span. From the empty state, for each block ascending in which a row sees keys:
///   s_j = blocksum(q, k_j)·scale, hidden keys left out by selection;
///   M = max(m, max_j s_j);  α = Exp(m − M);  p_j = Exp(s_j − M), +0 where hidden;
///   l = l·α + Σ p_j (SumOfWeights' order);
///   acc = fma(acc, α, blocksum over the block's B keys of bf16(p_j)·v_j);  m = M.
/// A row that sees nothing stays empty (−inf, 0, 0). The bits of a row's state are the same for
/// every tier, number of rows and company. Thread-safe with a scratch for each thread.
void ComputeSpanStates(const Kernels& kernels, const SpanShape& shape, Bf16Rows queries,
                       absl::Span<const int32_t> num_visible, const SpanBlocks& blocks,
                       SpanScratch& scratch, SpanStates states);

/// Writes key `token` in [0, B) of a block: its `key_width` elements, +0 up to the padded width.
void StoreKey(const Kernels& kernels, const SpanShape& shape, absl::Span<const Bf16> key,
              int64_t token, Bf16* block);
/// Writes value `token` in [0, B) of a block.
void StoreValue(const Kernels& kernels, const SpanShape& shape, absl::Span<const Bf16> value,
                int64_t token, Bf16* block);
/// Packs the keys (values) of a whole block from rows; absent rows, num_rows < B, become +0.
void PackKeyBlock(const Kernels& kernels, const SpanShape& shape, Bf16Rows keys, Bf16* block);
void PackValueBlock(const Kernels& kernels, const SpanShape& shape, Bf16Rows values, Bf16* block);

}  // namespace moebius
