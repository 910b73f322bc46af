// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moebius {

/// A read-only range of bytes and a share in whatever keeps them alive: how payload travels between
/// threads without a copy. Copies share the bytes. Nobody writes to the bytes while a SharedBytes
/// refers to them. Copying and destroying are thread-safe; one object is not.
class SharedBytes {
 public:
  SharedBytes() = default;
  /// `owner` keeps [data, data + size) alive and unchanged.
  SharedBytes(std::shared_ptr<const void> owner, const uint8_t* data, size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}

  /// New memory, 64-byte aligned, with a copy of `bytes`.
  static SharedBytes Copy(absl::Span<const uint8_t> bytes);
  static SharedBytes Copy(absl::string_view bytes);
  /// Bytes that outlive every use: constants, or memory that the caller waits for.
  static SharedBytes Borrow(absl::Span<const uint8_t> bytes) {
    return SharedBytes(nullptr, bytes.data(), bytes.size());
  }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::Span<const uint8_t> span() const { return absl::MakeConstSpan(data_, size_); }
  absl::string_view view() const {
    return absl::string_view(reinterpret_cast<const char*>(data_), size_);
  }
  /// Bytes [begin, end), sharing the owner. 0 <= begin <= end <= size().
  SharedBytes Slice(size_t begin, size_t end) const;

 private:
  std::shared_ptr<const void> owner_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

inline constexpr size_t kBytesAlignment = 64;

/// Memory to fill and then share: kBytesAlignment, contents unspecified until written.
class BytesBuilder {
 public:
  explicit BytesBuilder(size_t size);
  /// `owner` keeps [data, data + size) alive; nobody else uses it.
  BytesBuilder(std::shared_ptr<void> owner, uint8_t* data, size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}
  BytesBuilder(BytesBuilder&&) = default;
  BytesBuilder& operator=(BytesBuilder&&) = default;
  uint8_t* data() { return data_; }
  size_t size() const { return size_; }
  /// Gives the bytes away; the builder is empty afterwards.
  SharedBytes Share() &&;

 private:
  std::shared_ptr<void> owner_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

/// A frame's payload as consecutive pieces; a single piece where nothing forces more. In place:
/// metadata, padding and rows.
using Payload = absl::InlinedVector<SharedBytes, 3>;

size_t PayloadBytes(const Payload& payload);

/// Bytes [begin, end) of the payload, sharing the pieces' owners.
Payload SlicePayload(const Payload& payload, size_t begin, size_t end);

/// Writes all pieces, one after the other, to `out`.
void CopyPayload(const Payload& payload, uint8_t* out);

}  // namespace moebius
