// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What the codes of F8_E4M3 are in bf16, for the decoders: the high and the low byte of code 0 …
/// 127. The sign goes to the high byte's top bit.
namespace moebius {
namespace {

struct Fp8Table {
  alignas(64) uint8_t high[128] = {};
  alignas(64) uint8_t low[128] = {};
};

/// A code eeee mmm with eeee > 0 is the bf16 (eeee + 120) mmm0000; one with eeee = 0 is mmm · 2^-9.
constexpr Fp8Table MakeFp8Table() {
  Fp8Table table;
  for (uint32_t code = 0; code < 128; ++code) {
    uint32_t bits = (code << 4) + (120u << 7);
    if (code < 8) {
      uint32_t leading = 0;  // of mmm
      for (uint32_t bit = 0; bit < 3; ++bit) leading = (code >> bit) != 0 ? bit : leading;
      bits = code == 0 ? 0 : ((leading + 118) << 7) | ((code << (7 - leading)) & 0x7F);
    }
    table.high[code] = static_cast<uint8_t>(bits >> 8);
    table.low[code] = static_cast<uint8_t>(bits & 0xFF);
  }
  return table;
}

inline constexpr Fp8Table kFp8Table = MakeFp8Table();

/// Codes of one run, which have values in both of its halves.
inline constexpr int kRunCodes = 64;

}  // namespace
}  // namespace moebius
