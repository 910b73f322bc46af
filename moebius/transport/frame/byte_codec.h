// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/transport/frame/frame_header.h"
#include "moebius/transport/frame/shared_bytes.h"

namespace moebius {

/// Writes metadata: little-endian integers and floats, one after the other, unaligned.
class ByteWriter {
 public:
  template <typename T>
  void Write(T value) {
    static_assert(std::is_arithmetic_v<T>);
    WriteArray(absl::MakeConstSpan(&value, 1));
  }
  template <typename T>
  void WriteArray(absl::Span<const T> values) {
    static_assert(std::endian::native == std::endian::little, "a big-endian host would swap here");
    const size_t size = values.size() * sizeof(T);
    if (size == 0) return;
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  /// A 16-bit length, then the bytes; text.size() < 2^16.
  void WriteText(absl::string_view text) {
    Write(static_cast<uint16_t>(text.size()));
    WriteArray(absl::MakeConstSpan(text.data(), text.size()));
  }
  SharedBytes Share() const { return SharedBytes::Copy(absl::MakeConstSpan(bytes_)); }

 private:
  absl::InlinedVector<uint8_t, 256> bytes_;  // what a step of a few rows needs
};

/// Reads what ByteWriter wrote, from bytes that anybody may have sent. What is not there reads as
/// zero or empty and is remembered: ask AtEnd before using anything. Nothing is allocated for
/// elements that are not there. Borrows the bytes.
class ByteReader {
 public:
  explicit ByteReader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  T Read() {
    T value{};
    if (Has(sizeof(T))) std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }
  /// Into `values`, which becomes as long as there are elements.
  template <typename T>
  void ReadArray(uint64_t count, std::vector<T>& values) {
    values.clear();
    // Divides, as count · sizeof(T) could wrap.
    if (count > remaining() / sizeof(T)) is_complete_ = false;
    if (!is_complete_ || count == 0) return;
    values.resize(count);
    std::memcpy(values.data(), Take(count * sizeof(T)), count * sizeof(T));
  }
  std::string ReadText(size_t max_bytes) {
    const size_t size = Read<uint16_t>();
    if (size > max_bytes || !Has(size)) {
      is_complete_ = false;
      return {};
    }
    const uint8_t* text = Take(size);
    return std::string(text, text + size);
  }

  size_t remaining() const { return bytes_.size() - offset_; }
  bool is_complete() const { return is_complete_; }
  /// Everything was there, and what is left is less than one padding, of zeros.
  bool AtEnd() const {
    if (!is_complete_ || remaining() >= kMessageAlignment) return false;
    for (size_t i = offset_; i < bytes_.size(); ++i) {
      if (bytes_[i] != 0) return false;
    }
    return true;
  }

 private:
  bool Has(size_t size) {
    is_complete_ = is_complete_ && size <= remaining();
    return is_complete_;
  }
  const uint8_t* Take(size_t size) {
    const uint8_t* begin = bytes_.data() + offset_;
    offset_ += size;
    return begin;
  }

  absl::Span<const uint8_t> bytes_;
  size_t offset_ = 0;
  bool is_complete_ = true;
};

}  // namespace moebius
