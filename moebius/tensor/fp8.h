// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "moebius/tensor/bf16.h"
#include "moebius/tensor/rows.h"

/// FP8 weights with block scales: codes of the type that safetensors calls F8_E4M3 (a sign, four
/// bits of exponent with bias 7, three of mantissa; no infinities), and one fp32 scale for each
/// block of a matrix. Source: Micikevicius et al., "FP8 formats for deep learning", 2022.
namespace moebius {

/// The largest finite value of a code.
inline constexpr float kMaxFp8 = 448.0f;

/// False for the two NaNs, 0x7F and 0xFF.
constexpr bool IsFiniteFp8(uint8_t code) { return (code & 0x7F) != 0x7F; }

/// Exact for every finite code: three bits of mantissa, 2^-9 … 448, denormals of the code included.
/// A NaN stays one.
constexpr Bf16 Fp8ToBf16(uint8_t code) {
  constexpr uint32_t kBiasDifference = 127 - 7;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 8;
  const uint32_t magnitude = code & 0x7F;
  if (magnitude == 0x7F) return Bf16{static_cast<uint16_t>(sign | 0x7FC0)};
  if (magnitude >= 8) {
    return Bf16{static_cast<uint16_t>(sign | ((magnitude << 4) + (kBiasDifference << 7)))};
  }
  if (magnitude == 0) return Bf16{static_cast<uint16_t>(sign)};
  // magnitude · 2^-9 with its leading one made implicit.
  const uint32_t exponent = static_cast<uint32_t>(std::bit_width(magnitude)) - 1;
  const uint32_t mantissa = (magnitude << (7 - exponent)) & 0x7F;
  return Bf16{static_cast<uint16_t>(sign | ((exponent + 127 - 9) << 7) | mantissa)};
}

/// Exact, as above.
constexpr float Fp8ToFloat(uint8_t code) { return ToFloat(Fp8ToBf16(code)); }

/// Round to nearest, ties to even; beyond kMaxFp8 the largest value of that sign. NaN is a NaN.
constexpr uint8_t ToFp8(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFF);
  if (magnitude != magnitude) return static_cast<uint8_t>(sign | 0x7F);
  if (magnitude >= kMaxFp8) return static_cast<uint8_t>(sign | 0x7E);
  // Below 2^-6 codes are multiples of 2^-9: adding 1.5 · 2^14 rounds to them.
  if (magnitude < 0x1p-6f) {
    const float shifted = magnitude + 0x1.8p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xF));
  }
  const uint32_t positive = bits & 0x7FFFFFFF;
  const uint32_t rounded = positive + 0x7FFFF + ((positive >> 20) & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120 << 3)));
}

/// A matrix of codes with its scales, in memory that somebody else owns; maybe a part of a stored
/// matrix, whose blocks then begin before it. Weight (n, k) is code (n, k) times scale(n, k).
struct Fp8Rows {
  Rows<const uint8_t> codes;  // [N, K]
  FloatRows scales;           // [ceil((row_offset + N) / block_rows), the same of columns]
  int64_t block_rows = 1;
  int64_t block_columns = 1;
  int64_t row_offset = 0;     // of row 0 in its block, < block_rows
  int64_t column_offset = 0;  // of column 0 in its block, < block_columns

  float scale(int64_t row, int64_t column) const {
    return scales.row((row_offset + row) / block_rows)[(column_offset + column) / block_columns];
  }
};

}  // namespace moebius
