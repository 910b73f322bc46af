// SPDX-License-Identifier: Apache-2.0
#pragma once

// Definitions of math.h's fp32 functions; include that header instead.

#include <cstdint>

#include "moebius/kernels/inline.h"

namespace moebius {
namespace math_internal {

MOEBIUS_ALWAYS_INLINE uint32_t Bits(float x) { return __builtin_bit_cast(uint32_t, x); }
MOEBIUS_ALWAYS_INLINE float FromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// 1.5 · 2^23: adding it rounds |x| < 2^22 to an integer in the low bits.
inline constexpr float kRoundingShift = 12582912.0f;

// 2^r for r in [-0.5, 0.5] and e^r for r in [-ln 2 / 2, ln 2 / 2]: interpolation at the Chebyshev
// nodes, coefficients rounded to fp32; relative error 2e-8 before the rounding of the steps.
inline constexpr float kExp2Coefficients[7] = {0x1p+0f,        0x1.62e430p-1f, 0x1.ebfbe0p-3f,
                                               0x1.c6aeccp-5f, 0x1.3b2a1cp-7f, 0x1.5f48c0p-10f,
                                               0x1.444000p-13f};
inline constexpr float kExpCoefficients[7] = {
    0x1p+0f, 0x1p+0f, 0x1p-1f, 0x1.555404p-3f, 0x1.5554acp-5f, 0x1.126fa8p-7f, 0x1.6d7532p-10f};

inline constexpr float kLog2OfE = 0x1.715476p+0f;
// ln 2 in two parts; n · kLn2High is exact for |n| <= 2^9.
inline constexpr float kLn2High = 0x1.62e400p-1f;
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;

inline constexpr float kExpMin = -87.33654f;
inline constexpr float kExpMax = 88.7228f;

// 2 / ln 2 / (2i + 1): log2((1 + s) / (1 - s)) = s · Σ c_i s^(2i).
inline constexpr float kLog2Coefficients[5] = {2.8853900817779268f, 0.9617966939259756f,
                                               0.5770780163555853f, 0.4121985831111324f,
                                               0.3205988979753252f};

MOEBIUS_ALWAYS_INLINE float Horner6(const float (&c)[7], float r) {
  float p = c[6];
  p = p * r + c[5];
  p = p * r + c[4];
  p = p * r + c[3];
  p = p * r + c[2];
  p = p * r + c[1];
  return p * r + c[0];
}

}  // namespace math_internal

MOEBIUS_ALWAYS_INLINE float Exp2(float x) {
  using namespace math_internal;  // NOLINT(google-build-using-namespace): inside one function
  if (!(x >= -126.0f)) return x != x ? x + x : 0.0f;
  if (x >= 128.0f) return __builtin_inff();
  const float shifted = x + kRoundingShift;
  const float r = x - (shifted - kRoundingShift);
  const uint32_t n = Bits(shifted) - Bits(kRoundingShift);
  return FromBits(Bits(Horner6(kExp2Coefficients, r)) + (n << 23));
}

MOEBIUS_ALWAYS_INLINE float Exp(float x) {
  using namespace math_internal;  // NOLINT(google-build-using-namespace): inside one function
  if (!(x >= kExpMin)) return x != x ? x + x : 0.0f;
  if (x > kExpMax) return __builtin_inff();
  const float shifted = x * kLog2OfE + kRoundingShift;
  const float whole = shifted - kRoundingShift;
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  const uint32_t n = Bits(shifted) - Bits(kRoundingShift);
  // In two halves: n reaches 128 and the lowest result has exponent -126.
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(n) >> 1);
  const float low_scale = FromBits((half + 127) << 23);
  const float high_scale = FromBits((n - half + 127) << 23);
  return Horner6(kExpCoefficients, r) * low_scale * high_scale;
}

MOEBIUS_ALWAYS_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

MOEBIUS_ALWAYS_INLINE float Log2(float x) {
  using namespace math_internal;  // NOLINT(google-build-using-namespace): inside one function
  const uint32_t bits = Bits(x);
  if ((bits & 0x7FFFFFFF) < 0x00800000) return -__builtin_inff();
  if (bits >= 0x7F800000) {
    return bits == 0x7F800000 ? x : __builtin_nanf("");  // negative or NaN
  }
  // x = m · 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint32_t offset = bits - 0x3F3504F3;
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float m = FromBits((offset & 0x007FFFFF) + 0x3F3504F3);
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  float p = kLog2Coefficients[4];
  p = p * z + kLog2Coefficients[3];
  p = p * z + kLog2Coefficients[2];
  p = p * z + kLog2Coefficients[1];
  p = p * z + kLog2Coefficients[0];
  return s * p + e;
}

MOEBIUS_ALWAYS_INLINE float Log(float x) { return Log2(x) * 0x1.62e430p-1f; }

MOEBIUS_ALWAYS_INLINE float FusedMultiplyAdd(float a, float b, float c) {
  using namespace math_internal;  // NOLINT(google-build-using-namespace): inside one function
  const auto flush_input = [](float x) {
    const uint32_t bits = Bits(x);
    return (bits & 0x7F800000) == 0 ? FromBits(bits & 0x80000000) : x;
  };
  // 24 + 24 bits: the product is exact in fp64.
  const double product = static_cast<double>(flush_input(a)) * static_cast<double>(flush_input(b));
  const double addend = static_cast<double>(flush_input(c));
  double sum = product + addend;
  if ((__builtin_bit_cast(uint64_t, sum) & 0x7FF0000000000000) == 0x7FF0000000000000) {
    return static_cast<float>(sum);  // infinity or NaN came in
  }
  // The rounding error of the sum, exact (Knuth, TAOCP 4.2.2). Rounding to odd in fp64 first makes
  // the second rounding to fp32 the only one that counts (Boldo and Melquiond, 2008).
  const double virtual_addend = sum - product;
  const double error = (product - (sum - virtual_addend)) + (addend - virtual_addend);
  uint64_t sum_bits = __builtin_bit_cast(uint64_t, sum);
  if (error != 0 && (sum_bits & 1) == 0) {
    sum_bits += (error > 0) == (sum > 0) ? 1 : -1;
    sum = __builtin_bit_cast(double, sum_bits);
  }
  const double magnitude = sum < 0 ? -sum : sum;
  if (magnitude >= 0x1p-125 || magnitude == 0) return static_cast<float>(sum);
  // Near the smallest normal number: round with an unbounded exponent, then flush.
  const float scaled = static_cast<float>(sum * 0x1p+64);
  const float scaled_magnitude = scaled < 0 ? -scaled : scaled;
  if (scaled_magnitude < 0x1p-62f) return FromBits(Bits(scaled) & 0x80000000);
  return scaled * 0x1p-64f;
}

}  // namespace moebius
