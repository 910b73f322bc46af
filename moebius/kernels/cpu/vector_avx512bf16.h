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

  /// Per lane: fma of the high halves, then of the low halves, each rounded to nearest even with
  /// denormals flushed.
  MOEBIUS_ALWAYS_INLINE static Float Dot(Float sum, Bits a, Bits w) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
  }
};

}  // namespace
}  // namespace moebius
