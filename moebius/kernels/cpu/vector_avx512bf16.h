// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {
namespace {

/// AVX-512 with the bf16 dot instruction.
struct Avx512Bf16Vector : Avx512Vector {
  /// Per lane: fma of the high halves, then of the low halves, each rounded to nearest even with
  /// denormals flushed.
  MOEBIUS_ALWAYS_INLINE static Float Dot(Float sum, Bits a, Bits w) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
  }
};

}  // namespace
}  // namespace moebius
