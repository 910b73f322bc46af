// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <emmintrin.h>

#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/math_inline.h"

namespace moebius {
namespace {

/// The x86-64 baseline: four lanes, fused multiply-adds emulated exactly.
struct PortableVector : VectorOf<4> {
  /// `kLanes` bf16 values, widened exactly.
  MOEBIUS_ALWAYS_INLINE static Float LoadBf16(const uint16_t* p) {
    const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Float>(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
  }
  /// Rounded to nearest even.
  MOEBIUS_ALWAYS_INLINE static void StoreBf16(uint16_t* p, Float v) {
    // Halves widened with their sign are narrowed without loss.
    const __m128i signed_bits =
        _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(RoundToBf16(v)), 16), 16);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(signed_bits, signed_bits));
  }
  /// The same of a block's 32 values, none a denormal.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16Block(uint16_t* p, const Float (&v)[8]) {
    for (int i = 0; i < 8; ++i) StoreBf16(p + i * kLanes, v[i]);
  }
  /// The same, of elements 4j … 4j + 3 in the order 2, 0, 3, 1.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16BlockWithinChain(uint16_t* p,
                                                                    const Float (&v)[8]) {
    for (int i = 0; i < 8; ++i) {
      StoreBf16(p + i * kLanes, __builtin_shufflevector(v[i], v[i], 2, 0, 3, 1));
    }
  }

  /// fma(a, b, c) for any fp32.
  MOEBIUS_ALWAYS_INLINE static Float FusedMultiplyAdd(Float a, Float b, Float c) {
    Float result;
    for (int i = 0; i < kLanes; ++i) result[i] = moebius::FusedMultiplyAdd(a[i], b[i], c[i]);
    return result;
  }

  /// fma(a, b, c) where a and b are widened bf16. Their product has 16 significant bits: it is
  /// exact in fp32, and the fused result is product + c, unless it leaves the range of normal
  /// numbers.
  MOEBIUS_ALWAYS_INLINE static Float FusedMultiplyAddBf16(Float a, Float b, Float c) {
    const Float product = a * b;
    const Int magnitude = reinterpret_cast<Int>(AsBits(product) & 0x7FFFFFFF);
    const Int unusual = (magnitude < 0x00800000) | (magnitude >= 0x7F800000);
    if (_mm_movemask_ps(reinterpret_cast<Float>(unusual)) != 0 && LeftRange(a, b, magnitude))
        [[unlikely]] {
      return FusedMultiplyAdd(a, b, c);
    }
    return product + c;
  }

 private:
  // True unless every unusual product is the exact zero, infinity or NaN that its factors make.
  MOEBIUS_ALWAYS_INLINE static bool LeftRange(Float a, Float b, Int magnitude) {
    const Bits a_exponent = AsBits(a) & 0x7F800000;
    const Bits b_exponent = AsBits(b) & 0x7F800000;
    const Int both_nonzero = (a_exponent != 0) & (b_exponent != 0);
    const Int both_finite = (a_exponent != 0x7F800000) & (b_exponent != 0x7F800000);
    const Int left =
        ((magnitude < 0x00800000) & both_nonzero) | ((magnitude >= 0x7F800000) & both_finite);
    return _mm_movemask_ps(reinterpret_cast<Float>(left)) != 0;
  }
};

}  // namespace
}  // namespace moebius
