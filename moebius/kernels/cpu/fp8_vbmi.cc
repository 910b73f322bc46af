// SPDX-License-Identifier: Apache-2.0
// Decodes FP8 codes by two look-ups in tables of 128 bytes: compiled for AVX-512 (f, bw, vbmi),
// called only where the CPU has them.
#include <immintrin.h>

#include "moebius/kernels/cpu/fp8_table.h"
#include "moebius/kernels/cpu/tiers.h"

namespace moebius {

void DecodeFp8Vbmi(const DecodeFp8Call& call) {
  const __m512i high_0 = _mm512_load_si512(kFp8Table.high);
  const __m512i high_1 = _mm512_load_si512(kFp8Table.high + 64);
  const __m512i low_0 = _mm512_load_si512(kFp8Table.low);
  const __m512i low_1 = _mm512_load_si512(kFp8Table.low + 64);
  const __m512i sign_bit = _mm512_set1_epi8(static_cast<char>(0x80));
  // a | (b & c), by its truth table.
  constexpr int kOrOfAnd = 0xF8;
  for (int64_t begin = 0; begin < call.num_blocks * kPanelBlockSize; begin += kRunCodes) {
    if (call.ahead_bytes != 0) __builtin_prefetch(call.codes + begin + call.ahead_bytes);
    const __m512i codes = _mm512_load_si512(call.codes + begin);
    // A look-up takes seven bits of its index.
    const __m512i low = _mm512_permutex2var_epi8(low_0, codes, low_1);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_0, codes, high_1);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign_bit, kOrOfAnd);
    _mm512_store_si512(call.values + begin, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(call.values + begin + 32, _mm512_unpackhi_epi8(low, high));
  }
}

}  // namespace moebius
