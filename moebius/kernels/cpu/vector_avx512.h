// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "moebius/kernels/cpu/vector.h"

namespace moebius {
namespace {

/// AVX-512: sixteen lanes.
struct Avx512Vector : VectorOf<16> {
  /// `kLanes` bf16 values, widened exactly.
  MOEBIUS_ALWAYS_INLINE static Float LoadBf16(const uint16_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return reinterpret_cast<Float>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  /// Rounded to nearest even.
  MOEBIUS_ALWAYS_INLINE static void StoreBf16(uint16_t* p, Float v) {
    const __m512i bits = reinterpret_cast<__m512i>(RoundToBf16(v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bits));
  }
  /// The same of a block's 32 values, none a denormal.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16Block(uint16_t* p, const Float (&v)[2]) {
    StoreBf16(p, v[0]);
    StoreBf16(p + kLanes, v[1]);
  }
  /// The same, of elements 4j … 4j + 3 in the order 2, 0, 3, 1.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16BlockWithinChain(uint16_t* p,
                                                                    const Float (&v)[2]) {
    StoreNormalBf16Block(p, {WithinChain(v[0]), WithinChain(v[1])});
  }

  MOEBIUS_ALWAYS_INLINE static Float Select(Int mask, Float a, Float b) {
    return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)), a);
  }
  MOEBIUS_ALWAYS_INLINE static Float SubtractExactProduct(Float x, Float a, Float b) {
    return _mm512_fnmadd_ps(a, b, x);
  }
  MOEBIUS_ALWAYS_INLINE static Float ScaleOrZeroBelow(Float x, float bound, Float p, Float,
                                                      Float n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, Broadcast(bound), _CMP_NLT_UQ), p, n);
  }
  MOEBIUS_ALWAYS_INLINE static Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }

  MOEBIUS_ALWAYS_INLINE static Float FusedMultiplyAdd(Float a, Float b, Float c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  MOEBIUS_ALWAYS_INLINE static Float FusedMultiplyAddBf16(Float a, Float b, Float c) {
    return _mm512_fmadd_ps(a, b, c);
  }

 private:
  MOEBIUS_ALWAYS_INLINE static Float WithinChain(Float v) {
    return __builtin_shufflevector(v, v, 2, 0, 3, 1, 6, 4, 7, 5, 10, 8, 11, 9, 14, 12, 15, 13);
  }
};

}  // namespace
}  // namespace moebius
