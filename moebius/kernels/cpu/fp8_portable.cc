// SPDX-License-Identifier: Apache-2.0
// Decodes FP8 codes by table, value by value.
#include "moebius/kernels/cpu/fp8_table.h"
#include "moebius/kernels/cpu/tiers.h"

namespace moebius {

void DecodeFp8Portable(const DecodeFp8Call& call) {
  for (int64_t begin = 0; begin < call.num_blocks * kPanelBlockSize; begin += kRunCodes) {
    for (int value = 0; value < kRunCodes; ++value) {
      const int offset = value % 32 / 8 * 16 + value / 32 * 8 + value % 8;
      const uint8_t code = call.codes[begin + offset];
      const uint32_t high = kFp8Table.high[code & 0x7F] | (code & 0x80u);
      call.values[begin + value] = static_cast<uint16_t>((high << 8) | kFp8Table.low[code & 0x7F]);
    }
  }
}

}  // namespace moebius
