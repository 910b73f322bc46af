// SPDX-License-Identifier: Apache-2.0
// Decodes FP8 codes by byte arithmetic, and denormals of the code by a shuffle: compiled for
// AVX-512 (f, bw), called only where the CPU has it.
#include <immintrin.h>

#include "moebius/kernels/cpu/fp8_table.h"
#include "moebius/kernels/cpu/tiers.h"

namespace moebius {
namespace {

__m512i Table16(const uint8_t* bytes) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

}  // namespace

void DecodeFp8Avx512(const DecodeFp8Call& call) {
  // By the low nibble; only codes below 8 read them.
  const __m512i small_high = Table16(kFp8Table.high);
  const __m512i small_low = Table16(kFp8Table.low);
  const __m512i sign_bit = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i nibble = _mm512_set1_epi8(0x0F);
  const __m512i exponent = _mm512_set1_epi8(0x78);
  // (eeee + 120) >> 1 is (eeee >> 1) + 60, and eeee's last bit lies above mmm in the low byte.
  const __m512i bias = _mm512_set1_epi8(60);
  for (int64_t begin = 0; begin < call.num_blocks * kPanelBlockSize; begin += kRunCodes) {
    if (call.ahead_bytes != 0) __builtin_prefetch(call.codes + begin + call.ahead_bytes);
    const __m512i codes = _mm512_load_si512(call.codes + begin);
    const __mmask64 is_small = _mm512_testn_epi8_mask(codes, exponent);
    const __m512i low_nibble = _mm512_and_si512(codes, nibble);
    const __m512i high_nibble =
        _mm512_and_si512(_mm512_srli_epi16(_mm512_andnot_si512(sign_bit, codes), 4), nibble);
    __m512i high = _mm512_add_epi8(high_nibble, bias);
    // A nibble has no bits that a shift by 4 of its 16-bit lane would carry across bytes.
    __m512i low = _mm512_slli_epi16(low_nibble, 4);
    high = _mm512_mask_shuffle_epi8(high, is_small, small_high, low_nibble);
    low = _mm512_mask_shuffle_epi8(low, is_small, small_low, low_nibble);
    high = _mm512_or_si512(high, _mm512_and_si512(codes, sign_bit));
    _mm512_store_si512(call.values + begin, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(call.values + begin + 32, _mm512_unpackhi_epi8(low, high));
  }
}

}  // namespace moebius
