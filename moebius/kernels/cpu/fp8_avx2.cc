// SPDX-License-Identifier: Apache-2.0
// Decodes FP8 codes by byte arithmetic, and denormals of the code by a shuffle: compiled with
// -mavx2, called only where the CPU has it.
#include <immintrin.h>

#include "moebius/kernels/cpu/fp8_table.h"
#include "moebius/kernels/cpu/tiers.h"

namespace moebius {
namespace {

__m256i Table16(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

}  // namespace

void DecodeFp8Avx2(const DecodeFp8Call& call) {
  // By the low nibble; only codes below 8 read them.
  const __m256i small_high = Table16(kFp8Table.high);
  const __m256i small_low = Table16(kFp8Table.low);
  const __m256i sign_bit = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i nibble = _mm256_set1_epi8(0x0F);
  // (eeee + 120) >> 1 is (eeee >> 1) + 60, and eeee's last bit lies above mmm in the low byte.
  const __m256i bias = _mm256_set1_epi8(60);
  for (int64_t begin = 0; begin < call.num_blocks * kPanelBlockSize; begin += kRunCodes) {
    if (call.ahead_bytes != 0) __builtin_prefetch(call.codes + begin + call.ahead_bytes);
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = _mm256_load_si256(
          reinterpret_cast<const __m256i*>(call.codes + begin + half * (kRunCodes / 2)));
      const __m256i low_nibble = _mm256_and_si256(codes, nibble);
      const __m256i magnitude = _mm256_andnot_si256(sign_bit, codes);
      const __m256i is_small = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), magnitude);
      const __m256i high_nibble = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), nibble);
      __m256i high = _mm256_add_epi8(high_nibble, bias);
      // A nibble has no bits that a shift by 4 of its 16-bit lane would carry across bytes.
      __m256i low = _mm256_slli_epi16(low_nibble, 4);
      high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(small_high, low_nibble), is_small);
      low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(small_low, low_nibble), is_small);
      high = _mm256_or_si256(high, _mm256_and_si256(codes, sign_bit));
      uint16_t* const values = call.values + begin + half * 16;
      _mm256_store_si256(reinterpret_cast<__m256i*>(values), _mm256_unpacklo_epi8(low, high));
      _mm256_store_si256(reinterpret_cast<__m256i*>(values + 32), _mm256_unpackhi_epi8(low, high));
    }
  }
}

}  // namespace moebius
