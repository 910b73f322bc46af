// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {
namespace {

/// AVX-512 with the bf16 dot instruction.
struct Avx512Bf16Vector : Avx512Vector {
  /// Rounded to nearest even; denormals become zeros.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16(uint16_t* p, Float v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }
  /// The same, of elements 4j … 4j + 3 in the order 2, 0, 3, 1.
  MOEBIUS_ALWAYS_INLINE static void StoreNormalBf16WithinChain(uint16_t* p, Float v) {
    StoreNormalBf16(
        p, __builtin_shufflevector(v, v, 2, 0, 3, 1, 6, 4, 7, 5, 10, 8, 11, 9, 14, 12, 15, 13));
  }

  /// Per lane: fma of the high halves, then of the low halves, each rounded to nearest even with
  /// denormals flushed.
  MOEBIUS_ALWAYS_INLINE static Float Dot(Float sum, Bits a, Bits w) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
  }
};

}  // namespace
}  // namespace moebius
