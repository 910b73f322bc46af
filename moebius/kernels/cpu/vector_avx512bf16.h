// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {
namespace {

/// AVX-512 with the bf16 dot instruction.
struct Avx512Bf16Vector : Avx512Vector {
  /// Rounded to nearest even; denormals become zeros.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16Block(uint16_t* p, const Float (&v)[2]) {
    _mm512_storeu_si512(p, Rounded(v));
  }
  /// The same, of elements 4j … 4j + 3 in the order 2, 0, 3, 1.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16BlockWithinChain(uint16_t* p,
                                                                    const Float (&v)[2]) {
    // In each 16 bytes the words 0 … 7 as 2, 0, 3, 1, 6, 4, 7, 5.
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11));
    _mm512_storeu_si512(p, _mm512_shuffle_epi8(Rounded(v), order));
  }

  /// Per lane: fma of the high halves, then of the low halves, each rounded to nearest even with
  /// denormals flushed.
  MOEBIUS_ALWAYS_INLINE static Float Dot(Float sum, Bits a, Bits w) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
  }

 private:
  MOEBIUS_ALWAYS_INLINE static __m512i Rounded(const Float (&v)[2]) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(v[1], v[0]));
  }
};

}  // namespace
}  // namespace moebius
