// SPDX-License-Identifier: Apache-2.0
// How the keys and values of a block are packed: attention.h's functions of whole rows, here with
// vectors of 16 bytes, which every x86-64 has.
#include <emmintrin.h>

#include <algorithm>
#include <iterator>

#include "moebius/base/check.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/pack_tiles.h"
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

// Of Bf16 or of its bits.
template <class Value>
__m128i Load(const Value* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
template <class Value>
void Store(__m128i values, Value* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), values);
}

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
void PackKeyTile(bool within_chain, const uint16_t* keys, int64_t stride, uint16_t* tile) {
  for (int64_t k = 0; k < kBlockDepth; k += 8) {
    for (int64_t t = 0; t < kPanelColumns; t += 4) {
      __m128i pairs[4];
      for (int64_t i = 0; i < 4; ++i) pairs[i] = Load(keys + (t + i) * stride + k);
      Transpose(pairs);
      if (within_chain) {
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
void PackValueTile(bool within_chain, const uint16_t* values, int64_t stride, uint16_t* tile) {
  const PairOrder order = within_chain ? PairOrder::kWithinChain : PairOrder::kAdjacent;
  for (int64_t pair = 0; pair < kBlockDepth / 2; ++pair) {
    const PairedRows rows = RowsOfPair(order, pair);
    const uint16_t* low = values + rows.low * stride;
    const uint16_t* high = values + rows.high * stride;
    uint16_t* to = tile + pair * 2 * kPanelColumns;
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

using PackTile = void (*)(bool, const uint16_t*, int64_t, uint16_t*);
template <PackTile pack>
void PackEach(const PackTilesCall& call) {
  for (int64_t i = 0; i < call.num_tiles; ++i) {
    pack(call.within_chain, call.rows + i * call.tile_step, call.row_stride,
         call.tiles + i * kPanelBlockSize);
  }
}

// The fastest of this CPU. Unlike a sum's, it is no choice of a tier: bits are moved, not made.
const PackTiles& ChosenPackTiles() {
  static const PackTiles& chosen =
      __builtin_cpu_supports("avx512bw") ? kAvx512PackTiles : kBaselinePackTiles;
  return chosen;
}

// One panel: the tiles that begin at `rows` and then each (row_step, column_step) further, their
// parts outside of `rows` +0.
struct PanelOfRows {
  Bf16Rows rows;
  int64_t row = 0;
  int64_t column = 0;
  int64_t row_step = 0;
  int64_t column_step = 0;
  int64_t num_tiles = 0;

  // Tiles that lie wholly inside.
  int64_t NumWhole() const {
    if (rows.num_rows < row + 32 || rows.width < column + 32) return 0;
    const int64_t whole =
        row_step > 0 ? (rows.num_rows - row) / row_step : (rows.width - column) / column_step;
    return std::min(whole, num_tiles);
  }
};

void PackPanel(void (*pack)(const PackTilesCall&), PairOrder order, const PanelOfRows& panel,
               Bf16* tiles) {
  PackTilesCall call{.within_chain = order == PairOrder::kWithinChain,
                     .tiles = reinterpret_cast<uint16_t*>(tiles)};
  const auto run = [&](Bf16Rows rows, int64_t tile_step, int64_t num_tiles) {
    call.rows = reinterpret_cast<const uint16_t*>(rows.data);
    call.row_stride = rows.stride;
    call.tile_step = tile_step;
    call.num_tiles = num_tiles;
    pack(call);
    call.tiles += num_tiles * kPanelBlockSize;
  };
  const int64_t num_whole = panel.NumWhole();
  if (num_whole > 0) {
    run(panel.rows.Slice(panel.row, panel.rows.num_rows).Columns(panel.column, panel.rows.width),
        panel.row_step * panel.rows.stride + panel.column_step, num_whole);
  }
  StagedTile staged;
  for (int64_t i = num_whole; i < panel.num_tiles; ++i) {
    run(staged.TileAt(panel.rows, panel.row + i * panel.row_step,
                      panel.column + i * panel.column_step),
        0, 1);
  }
}

}  // namespace

const PackTiles kBaselinePackTiles = {.keys = PackEach<PackKeyTile>,
                                      .values = PackEach<PackValueTile>};

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
  for (int64_t t = 0; t < shape.key_block; t += kPanelColumns) {
    PackPanel(ChosenPackTiles().keys, order,
              {.rows = keys,
               .row = t,
               .column_step = kBlockDepth,
               .num_tiles = shape.padded_key_width() / kBlockDepth},
              block + t * shape.padded_key_width());
  }
}

void PackValueBlock(PairOrder order, const SpanShape& shape, Bf16Rows values, Bf16* block) {
  MOEBIUS_CHECK(values.num_rows <= shape.key_block && values.width == shape.value_width);
  for (int64_t d = 0; d < shape.padded_value_width(); d += kPanelColumns) {
    PackPanel(ChosenPackTiles().values, order,
              {.rows = values,
               .column = d,
               .row_step = kBlockDepth,
               .num_tiles = shape.key_block / kBlockDepth},
              block + d * shape.key_block);
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
