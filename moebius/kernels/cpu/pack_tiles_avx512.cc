// SPDX-License-Identifier: Apache-2.0
// Packs tiles of keys and values: compiled for AVX-512 (f, bw), called only where the CPU has it.
#include <immintrin.h>

#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/kernel_calls.h"
#include "moebius/kernels/pack_tiles.h"

namespace moebius {
namespace {

constexpr int kRowPairs = kPanelColumns * 2;  // values of a block's row of pairs

// Of each four values a, b, c, d: c, a, d, b.
MOEBIUS_ALWAYS_INLINE __m512i PairWithinChain(__m512i values) {
  return _mm512_shuffle_epi8(values, _mm512_broadcast_i32x4(_mm_setr_epi8(
                                         4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11)));
}

// 16 bytes of rows 0, 4, 8 and 12.
MOEBIUS_ALWAYS_INLINE __m512i LoadFourRows(const uint16_t* rows, int64_t stride) {
  const auto piece = [&](int64_t row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride));
  };
  __m512i four = _mm512_castsi128_si512(piece(0));
  four = _mm512_inserti32x4(four, piece(4), 1);
  four = _mm512_inserti32x4(four, piece(8), 2);
  return _mm512_inserti32x4(four, piece(12), 3);
}

// A transposition of pairs, 16 rows of it.
template <bool within_chain>
MOEBIUS_ALWAYS_INLINE void PackHalfKeyTile(const uint16_t* rows, int64_t stride, uint16_t* tile) {
  MOEBIUS_UNROLL
  for (int k = 0; k < kBlockDepth; k += 8) {
    // Lane i of row r's vector is row 4 · i + r, which is where the pairs of that row shall be.
    __m512i row[4];
    MOEBIUS_UNROLL
    for (int r = 0; r < 4; ++r) {
      row[r] = LoadFourRows(rows + r * stride + k, stride);
      if constexpr (within_chain) row[r] = PairWithinChain(row[r]);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]);
    const __m512i high01 = _mm512_unpackhi_epi32(row[0], row[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(row[2], row[3]);
    const __m512i high23 = _mm512_unpackhi_epi32(row[2], row[3]);
    uint16_t* const to = tile + k / 2 * kRowPairs;
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(to + kRowPairs, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(to + 2 * kRowPairs, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(to + 3 * kRowPairs, _mm512_unpackhi_epi64(high01, high23));
  }
}

template <bool within_chain>
void PackKeyTiles(const PackTilesCall& call) {
  for (int64_t i = 0; i < call.num_tiles; ++i) {
    const uint16_t* const rows = call.rows + i * call.tile_step;
    uint16_t* const tile = call.tiles + i * kPanelBlockSize;
    PackHalfKeyTile<within_chain>(rows, call.row_stride, tile);
    PackHalfKeyTile<within_chain>(rows + 16 * call.row_stride, call.row_stride,
                                  tile + kRowPairs / 2);
  }
}

template <bool within_chain>
void PackValueTiles(const PackTilesCall& call) {
  // The eight pairs of each lane of unpacked halves, low ones first, in the order of columns.
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int64_t i = 0; i < call.num_tiles; ++i) {
    const uint16_t* const rows = call.rows + i * call.tile_step;
    uint16_t* const tile = call.tiles + i * kPanelBlockSize;
    MOEBIUS_UNROLL
    for (int pair = 0; pair < kBlockDepth / 2; ++pair) {
      const int high = within_chain ? pair / 2 * 4 + pair % 2 : 2 * pair + 1;
      const int low = within_chain ? high + 2 : 2 * pair;
      const __m512i lows = _mm512_loadu_si512(rows + low * call.row_stride);
      const __m512i highs = _mm512_loadu_si512(rows + high * call.row_stride);
      const __m512i low_halves = _mm512_unpacklo_epi16(lows, highs);
      const __m512i high_halves = _mm512_unpackhi_epi16(lows, highs);
      uint16_t* const to = tile + pair * kRowPairs;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low_halves, first, high_halves));
      _mm512_storeu_si512(to + kRowPairs / 2,
                          _mm512_permutex2var_epi64(low_halves, second, high_halves));
    }
  }
}

void PackKeys(const PackTilesCall& call) {
  call.within_chain ? PackKeyTiles<true>(call) : PackKeyTiles<false>(call);
}
void PackValues(const PackTilesCall& call) {
  call.within_chain ? PackValueTiles<true>(call) : PackValueTiles<false>(call);
}

}  // namespace

const PackTiles kAvx512PackTiles = {.keys = PackKeys, .values = PackValues};

}  // namespace moebius
