// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/utf8.h"

namespace moebius {

Utf8FirstByte ClassifyUtf8(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

size_t Utf8CharacterBytes(absl::string_view text) {
  if (text.empty()) return 0;
  const Utf8FirstByte first = ClassifyUtf8(static_cast<uint8_t>(text[0]));
  const size_t length = static_cast<size_t>(first.length);
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? first.second_low : 0x80;
    const uint8_t high = i == 1 ? first.second_high : 0xBF;
    if (byte < low || byte > high) return 0;
  }
  return length;
}

}  // namespace moebius
