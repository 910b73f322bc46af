// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace moebius {

/// What may follow the first byte of a well-formed character (Unicode 15, table 3-7).
struct Utf8FirstByte {
  int length = 0;  // bytes of the character; 0: no character begins with this byte
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

Utf8FirstByte ClassifyUtf8(uint8_t byte);

/// Bytes of the well-formed character that `text` begins with; 0 where there is none.
size_t Utf8CharacterBytes(absl::string_view text);

}  // namespace moebius
