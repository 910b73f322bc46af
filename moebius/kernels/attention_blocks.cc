// SPDX-License-Identifier: Apache-2.0
// How the keys and values of a block are packed: attention.h's functions of whole rows. Vectors of
// 16 bytes, which every x86-64 has, keep up with what memory gives.
#include <emmintrin.h>

#include <algorithm>
#include <iterator>

#include "moebius/base/check.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/packed_matrix.h"

namespace moebius {
namespace {

// Where column `column` of a matrix with `depth` padded K begins among its packed panels, and the
// elements from one block of 32 K to the next.
struct PackedColumn {
  PairOrder order;
  Bf16* panel;
  int64_t column;

  PackedColumn(PairOrder order, Bf16* packed, int64_t padded_depth, int64_t column)
      : order(order),
        panel(packed + column / kPanelColumns * padded_depth * kPanelColumns),
        column(column % kPanelColumns) {}
  Bf16& operator[](int64_t k) const {
    return panel[k / kBlockDepth * kPanelBlockSize +
                 PanelBlockOffset(order, k % kBlockDepth, column)];
  }
};

// Tiles of 32 rows and 32 elements of a matrix, those at its edges padded with +0.
class StagedTile {
 public:
  // Valid until the next call.
  Bf16Rows TileAt(Bf16Rows rows, int64_t row, int64_t column) {
    const int64_t num_rows = std::clamp<int64_t>(rows.num_rows - row, 0, 32);
    const int64_t width = std::clamp<int64_t>(rows.width - column, 0, 32);
    if (num_rows == 32 && width == 32)
      return rows.Slice(row, row + 32).Columns(column, column + 32);
    std::fill(std::begin(tile_), std::end(tile_), Bf16{});
    for (int64_t r = 0; r < num_rows; ++r) {
      std::copy_n(rows.row(row + r) + column, width, tile_ + r * 32);
    }
    return Bf16Rows(tile_, 32, 32);
  }
  // The inverse: `fill` makes a whole tile, whose part inside `rows` is theirs. The tile begins at
  // (row, column) of `rows`, row may be negative.
  template <class Fill>
  void FillAt(MutableBf16Rows rows, int64_t row, int64_t column, Fill fill) {
    const int64_t width = std::min<int64_t>(rows.width - column, 32);
    if (row >= 0 && row + 32 <= rows.num_rows && width == 32) {
      fill(rows.Slice(row, row + 32).Columns(column, column + 32));
      return;
    }
    fill(MutableBf16Rows(tile_, 32, 32));
    for (int64_t r = std::max<int64_t>(0, -row); r < 32 && row + r < rows.num_rows; ++r) {
      std::copy_n(tile_ + r * 32, width, rows.row(row + r) + column);
    }
  }

 private:
  Bf16 tile_[32 * 32];
};

__m128i Load(const Bf16* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void Store(__m128i values, Bf16* to) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), values); }

// Words [row][column] to [column][row].
void Transpose(__m128i (&words)[4]) {
  const __m128i low01 = _mm_unpacklo_epi32(words[0], words[1]);
  const __m128i high01 = _mm_unpackhi_epi32(words[0], words[1]);
  const __m128i low23 = _mm_unpacklo_epi32(words[2], words[3]);
  const __m128i high23 = _mm_unpackhi_epi32(words[2], words[3]);
  words[0] = _mm_unpacklo_epi64(low01, low23);
  words[1] = _mm_unpackhi_epi64(low01, low23);
  words[2] = _mm_unpacklo_epi64(high01, high23);
  words[3] = _mm_unpackhi_epi64(high01, high23);
}

// Of pairs (a, b) and (c, d), low half first: (c, a) and (d, b).
void PairWithinChain(__m128i& first, __m128i& second) {
  const __m128i low_halves = _mm_set1_epi32(0xFFFF);
  const __m128i c_a = _mm_or_si128(_mm_slli_epi32(first, 16), _mm_and_si128(second, low_halves));
  const __m128i d_b = _mm_or_si128(_mm_andnot_si128(low_halves, first), _mm_srli_epi32(second, 16));
  first = c_a;
  second = d_b;
}
// The inverse.
void PairAdjacent(__m128i& first, __m128i& second) {
  const __m128i low_halves = _mm_set1_epi32(0xFFFF);
  const __m128i a_b = _mm_or_si128(_mm_srli_epi32(first, 16), _mm_andnot_si128(low_halves, second));
  const __m128i c_d = _mm_or_si128(_mm_and_si128(first, low_halves), _mm_slli_epi32(second, 16));
  first = a_b;
  second = c_d;
}

// A 32 × 32 block of keys, as PanelBlockOffset says: a transposition of pairs.
void PackKeyTile(PairOrder order, Bf16Rows keys, Bf16* tile) {
  for (int64_t k = 0; k < kBlockDepth; k += 8) {
    for (int64_t t = 0; t < kPanelColumns; t += 4) {
      __m128i pairs[4];
      for (int64_t i = 0; i < 4; ++i) pairs[i] = Load(keys.data + (t + i) * keys.stride + k);
      Transpose(pairs);
      if (order == PairOrder::kWithinChain) {
        PairWithinChain(pairs[0], pairs[1]);
        PairWithinChain(pairs[2], pairs[3]);
      }
      for (int64_t i = 0; i < 4; ++i) Store(pairs[i], tile + (k + 2 * i) * kPanelColumns + 2 * t);
    }
  }
}

void UnpackKeyTile(PairOrder order, const Bf16* tile, MutableBf16Rows keys) {
  for (int64_t t = 0; t < kPanelColumns; t += 4) {
    for (int64_t k = 0; k < kBlockDepth; k += 8) {
      __m128i pairs[4];
      for (int64_t i = 0; i < 4; ++i) pairs[i] = Load(tile + (k + 2 * i) * kPanelColumns + 2 * t);
      if (order == PairOrder::kWithinChain) {
        PairAdjacent(pairs[0], pairs[1]);
        PairAdjacent(pairs[2], pairs[3]);
      }
      Transpose(pairs);
      for (int64_t i = 0; i < 4; ++i) Store(pairs[i], keys.data + (t + i) * keys.stride + k);
    }
  }
}

// The rows whose values are the low and the high halves of a block's row of pairs.
struct PairedRows {
  int64_t low;
  int64_t high;
};
PairedRows RowsOfPair(PairOrder order, int64_t pair) {
  if (order == PairOrder::kAdjacent) return {2 * pair, 2 * pair + 1};
  const int64_t high = pair / 2 * 4 + pair % 2;
  return {high + 2, high};
}

// A 32 × 32 block of values: K runs over the tokens.
void PackValueTile(PairOrder order, Bf16Rows values, Bf16* tile) {
  for (int64_t pair = 0; pair < kBlockDepth / 2; ++pair) {
    const PairedRows rows = RowsOfPair(order, pair);
    const Bf16* low = values.data + rows.low * values.stride;
    const Bf16* high = values.data + rows.high * values.stride;
    Bf16* to = tile + pair * 2 * kPanelColumns;
    for (int64_t c = 0; c < kPanelColumns; c += 8) {
      const __m128i lows = Load(low + c);
      const __m128i highs = Load(high + c);
      Store(_mm_unpacklo_epi16(lows, highs), to + 2 * c);
      Store(_mm_unpackhi_epi16(lows, highs), to + 2 * c + 8);
    }
  }
}

void UnpackValueTile(PairOrder order, const Bf16* tile, MutableBf16Rows values) {
  for (int64_t pair = 0; pair < kBlockDepth / 2; ++pair) {
    const PairedRows rows = RowsOfPair(order, pair);
    Bf16* low = values.data + rows.low * values.stride;
    Bf16* high = values.data + rows.high * values.stride;
    const Bf16* from = tile + pair * 2 * kPanelColumns;
    for (int64_t c = 0; c < kPanelColumns; c += 8) {
      const __m128i first = Load(from + 2 * c);
      const __m128i second = Load(from + 2 * c + 8);
      // Halves widened with their sign are narrowed without loss.
      Store(_mm_packs_epi32(_mm_srai_epi32(_mm_slli_epi32(first, 16), 16),
                            _mm_srai_epi32(_mm_slli_epi32(second, 16), 16)),
            low + c);
      Store(_mm_packs_epi32(_mm_srai_epi32(first, 16), _mm_srai_epi32(second, 16)), high + c);
    }
  }
}

}  // namespace

void StoreKey(PairOrder order, const SpanShape& shape, const Bf16* key, int64_t token,
              Bf16* block) {
  const PackedColumn column(order, block, shape.padded_key_width(), token);
  for (int64_t k = 0; k < shape.key_width; ++k) column[k] = key[k];
  for (int64_t k = shape.key_width; k < shape.padded_key_width(); ++k) column[k] = Bf16{};
}

void StoreValue(PairOrder order, const SpanShape& shape, const Bf16* value, int64_t token,
                Bf16* block) {
  const int64_t depth_offset =
      token / kBlockDepth * kPanelBlockSize + PanelBlockOffset(order, token % kBlockDepth, 0);
  for (int64_t d = 0; d < shape.padded_value_width(); d += kPanelColumns) {
    Bf16* column = block + d * shape.key_block + depth_offset;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const bool present = value != nullptr && d + c < shape.value_width;
      column[2 * c] = present ? value[d + c] : Bf16{};
    }
  }
}

void PackKeyBlock(PairOrder order, const SpanShape& shape, Bf16Rows keys, Bf16* block) {
  MOEBIUS_CHECK(keys.num_rows <= shape.key_block && keys.width == shape.key_width);
  StagedTile staged;
  for (int64_t t = 0; t < shape.key_block; t += kPanelColumns) {
    Bf16* panel = block + t * shape.padded_key_width();
    for (int64_t k = 0; k < shape.padded_key_width(); k += kBlockDepth) {
      PackKeyTile(order, staged.TileAt(keys, t, k), panel + k * kPanelColumns);
    }
  }
}

void PackValueBlock(PairOrder order, const SpanShape& shape, Bf16Rows values, Bf16* block) {
  MOEBIUS_CHECK(values.num_rows <= shape.key_block && values.width == shape.value_width);
  StagedTile staged;
  for (int64_t d = 0; d < shape.padded_value_width(); d += kPanelColumns) {
    Bf16* panel = block + d * shape.key_block;
    for (int64_t t = 0; t < shape.key_block; t += kBlockDepth) {
      PackValueTile(order, staged.TileAt(values, t, d), panel + t * kPanelColumns);
    }
  }
}

void UnpackKeys(PairOrder order, const SpanShape& shape, const Bf16* block, int64_t token_begin,
                MutableBf16Rows keys) {
  const int64_t token_end = token_begin + keys.num_rows;
  MOEBIUS_CHECK(token_begin >= 0 && token_end <= shape.key_block && keys.width == shape.key_width);
  StagedTile staged;
  for (int64_t t = token_begin / kPanelColumns * kPanelColumns; t < token_end; t += kPanelColumns) {
    const Bf16* panel = block + t * shape.padded_key_width();
    for (int64_t k = 0; k < shape.key_width; k += kBlockDepth) {
      staged.FillAt(keys, t - token_begin, k, [&](MutableBf16Rows tile) {
        UnpackKeyTile(order, panel + k * kPanelColumns, tile);
      });
    }
  }
}

void UnpackValues(PairOrder order, const SpanShape& shape, const Bf16* block, int64_t token_begin,
                  MutableBf16Rows values) {
  const int64_t token_end = token_begin + values.num_rows;
  MOEBIUS_CHECK(token_begin >= 0 && token_end <= shape.key_block &&
                values.width == shape.value_width);
  StagedTile staged;
  for (int64_t t = token_begin / kBlockDepth * kBlockDepth; t < token_end; t += kBlockDepth) {
    for (int64_t d = 0; d < shape.value_width; d += kPanelColumns) {
      const Bf16* panel = block + d * shape.key_block;
      staged.FillAt(values, t - token_begin, d, [&](MutableBf16Rows tile) {
        UnpackValueTile(order, panel + t * kPanelColumns, tile);
      });
    }
  }
}

}  // namespace moebius
