// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "moebius/kernels/cpu/vector.h"

namespace moebius {
namespace {

/// AVX2 and FMA: eight lanes.
struct Avx2Vector : VectorOf<8> {
  /// `kLanes` bf16 values, widened exactly.
  MOEBIUS_ALWAYS_INLINE static Float LoadBf16(const uint16_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Float>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  /// Rounded to nearest even.
  MOEBIUS_ALWAYS_INLINE static void StoreBf16(uint16_t* p, Float v) {
    const __m256i bits = reinterpret_cast<__m256i>(RoundToBf16(v));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
  }
  /// The same of a block's 32 values, none a denormal.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16Block(uint16_t* p, const Float (&v)[4]) {
    for (int i = 0; i < 4; ++i) StoreBf16(p + i * kLanes, v[i]);
  }
  /// The same, of elements 4j … 4j + 3 in the order 2, 0, 3, 1.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16BlockWithinChain(uint16_t* p,
                                                                    const Float (&v)[4]) {
    for (int i = 0; i < 4; ++i) {
      StoreBf16(p + i * kLanes, __builtin_shufflevector(v[i], v[i], 2, 0, 3, 1, 6, 4, 7, 5));
    }
  }

  MOEBIUS_ALWAYS_INLINE static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }

  MOEBIUS_ALWAYS_INLINE static Float FusedMultiplyAdd(Float a, Float b, Float c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  MOEBIUS_ALWAYS_INLINE static Float FusedMultiplyAddBf16(Float a, Float b, Float c) {
    return _mm256_fmadd_ps(a, b, c);
  }
};

}  // namespace
}  // namespace moebius
