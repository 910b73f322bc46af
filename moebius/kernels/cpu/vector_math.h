// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/math_inline.h"

/// math.h's functions lane by lane: the same operations in the same order, so the same bits.
namespace moebius {
namespace {

template <class V>
MOEBIUS_ALWAYS_INLINE typename V::Float VectorHorner6(const float (&c)[7], typename V::Float r) {
  typename V::Float p = V::Broadcast(c[6]);
  p = p * r + V::Broadcast(c[5]);
  p = p * r + V::Broadcast(c[4]);
  p = p * r + V::Broadcast(c[3]);
  p = p * r + V::Broadcast(c[2]);
  p = p * r + V::Broadcast(c[1]);
  return p * r + V::Broadcast(c[0]);
}

/// 2^x; see Exp2.
template <class V>
MOEBIUS_ALWAYS_INLINE typename V::Float VectorExp2(typename V::Float x) {
  using math_internal::kExp2Coefficients;
  using math_internal::kRoundingShift;
  using Bits = typename V::Bits;
  const typename V::Float shift = V::Broadcast(kRoundingShift);
  const typename V::Float shifted = x + shift;
  const typename V::Float r = x - (shifted - shift);
  const Bits n = V::AsBits(shifted) - V::AsBits(shift);
  const typename V::Float inside =
      V::AsFloat(V::AsBits(VectorHorner6<V>(kExp2Coefficients, r)) + (n << 23));
  const typename V::Float above =
      V::Select(x >= V::Broadcast(128.0f), V::Broadcast(__builtin_inff()), inside);
  const typename V::Float below = V::Select(x != x, x + x, V::Zero());
  return V::Select(x >= V::Broadcast(-126.0f), above, below);
}

/// e^x; see Exp.
template <class V>
MOEBIUS_ALWAYS_INLINE typename V::Float VectorExp(typename V::Float x) {
  using math_internal::kExpCoefficients;
  using math_internal::kExpMax;
  using math_internal::kExpMin;
  using math_internal::kLn2High;
  using math_internal::kLn2Low;
  using math_internal::kLog2OfE;
  using math_internal::kRoundingShift;
  using Bits = typename V::Bits;
  using Int = typename V::Int;
  const typename V::Float shift = V::Broadcast(kRoundingShift);
  const typename V::Float shifted = x * V::Broadcast(kLog2OfE) + shift;
  const typename V::Float whole = shifted - shift;
  const typename V::Float r = (x - whole * V::Broadcast(kLn2High)) - whole * V::Broadcast(kLn2Low);
  const Bits n = V::AsBits(shifted) - V::AsBits(shift);
  const Bits half = reinterpret_cast<Bits>(reinterpret_cast<Int>(n) >> 1);
  const typename V::Float low_scale = V::AsFloat((half + 127) << 23);
  const typename V::Float high_scale = V::AsFloat((n - half + 127) << 23);
  const typename V::Float inside = VectorHorner6<V>(kExpCoefficients, r) * low_scale * high_scale;
  const typename V::Float above =
      V::Select(x > V::Broadcast(kExpMax), V::Broadcast(__builtin_inff()), inside);
  const typename V::Float below = V::Select(x != x, x + x, V::Zero());
  return V::Select(x >= V::Broadcast(kExpMin), above, below);
}

/// e^x of lanes that are not above zero (or NaN): Exp's operations without those that only other
/// lanes need. No result is below 2^-126 (checked for every x in [kExpMin, 0]), so n joins the
/// exponent by an addition; a NaN whose low nine bits are zero, as those of block sums, stays one.
/// One vector's operations wait for each other, those of `count` vectors side by side do not.
template <class V, int count>
MOEBIUS_ALWAYS_INLINE void VectorsExpNotAbove0(typename V::Float (&x)[count]) {
  using math_internal::kExpCoefficients;
  using math_internal::kExpMin;
  using math_internal::kLn2High;
  using math_internal::kLn2Low;
  using math_internal::kLog2OfE;
  using math_internal::kRoundingShift;
  using Float = typename V::Float;
  // Its low nine bits are zero: shifted by 23, the bits of x + kRoundingShift are n alone.
  static_assert((__builtin_bit_cast(uint32_t, kRoundingShift) & 0x1FF) == 0);
  const Float shift = V::Broadcast(kRoundingShift);
  Float shifted[count];
  Float whole[count];
  Float r[count];
  Float p[count];
  MOEBIUS_UNROLL
  for (int v = 0; v < count; ++v) {
    shifted[v] = x[v] * V::Broadcast(kLog2OfE) + shift;
    whole[v] = shifted[v] - shift;
    r[v] = V::SubtractExactProduct(x[v], whole[v], V::Broadcast(kLn2High)) -
           whole[v] * V::Broadcast(kLn2Low);
    p[v] = V::Broadcast(kExpCoefficients[6]);
  }
  MOEBIUS_UNROLL
  for (int i = 5; i >= 0; --i) {
    const Float coefficient = V::Broadcast(kExpCoefficients[i]);
    MOEBIUS_UNROLL
    for (int v = 0; v < count; ++v) {
      p[v] = p[v] * r[v] + coefficient;
      V::KeepHere(p[v]);
    }
  }
  MOEBIUS_UNROLL
  for (int v = 0; v < count; ++v) {
    x[v] = V::ScaleOrZeroBelow(x[v], kExpMin, p[v], shifted[v], whole[v]);
  }
}

/// 1 / (1 + e^-x); see Sigmoid.
template <class V>
MOEBIUS_ALWAYS_INLINE typename V::Float VectorSigmoid(typename V::Float x) {
  const typename V::Float one = V::Broadcast(1.0f);
  const typename V::Float negated = V::AsFloat(V::AsBits(x) ^ 0x80000000u);
  return one / (one + VectorExp<V>(negated));
}

}  // namespace
}  // namespace moebius
