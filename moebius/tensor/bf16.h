// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace moebius {

/// A bfloat16: the high half of an fp32. Arithmetic happens in fp32; this is storage.
struct Bf16 {
  uint16_t bits = 0;
  friend constexpr bool operator==(Bf16, Bf16) = default;
};
static_assert(sizeof(Bf16) == 2);

/// Exact.
constexpr float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Round to nearest, ties to even. NaN stays a (quiet) NaN of the same sign; overflow is infinity.
/// A denormal fp32 is rounded like any other number here; kernels see flushed values already.
constexpr Bf16 ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x0040)};
  const uint32_t rounding = 0x7FFF + ((bits >> 16) & 1);
  return Bf16{static_cast<uint16_t>((bits + rounding) >> 16)};
}

/// IEEE binary16 to fp32, exact, denormals included.
constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1F;
  uint32_t mantissa = half & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return std::bit_cast<float>(sign);
  uint32_t shift = 0;
  while ((mantissa & 0x400) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | ((113 - shift) << 23) | ((mantissa & 0x3FF) << 13));
}

}  // namespace moebius
