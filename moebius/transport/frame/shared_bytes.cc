// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/shared_bytes.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/spare_memory.h"

namespace moebius {
namespace {

constexpr size_t kMaxJoinedBytes = 16 << 10;

}  // namespace

SharedBytes SharedBytes::Copy(absl::Span<const uint8_t> bytes) {
  if (bytes.empty()) return SharedBytes();
  BytesBuilder builder(bytes.size());
  std::memcpy(builder.data(), bytes.data(), bytes.size());
  return std::move(builder).Share();
}

SharedBytes SharedBytes::Copy(absl::string_view bytes) {
  return Copy(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

SharedBytes SharedBytes::Slice(size_t begin, size_t end) const {
  MOEBIUS_CHECK_LE(begin, end);
  MOEBIUS_CHECK_LE(end, size_);
  return SharedBytes(owner_, data_ + begin, end - begin);
}

BytesBuilder::BytesBuilder(size_t size) : size_(size) {
  if (size == 0) return;
  if (size <= kMaxJoinedBytes) {
    // One allocation for the bytes and for the share in them.
    auto bytes = std::allocate_shared_for_overwrite<uint8_t[]>(SpareAllocator<uint8_t>(),
                                                               size + kBytesAlignment - 1);
    void* aligned = bytes.get();
    size_t room = size + kBytesAlignment - 1;
    data_ = static_cast<uint8_t*>(std::align(kBytesAlignment, size, aligned, room));
    owner_ = std::move(bytes);
    return;
  }
  void* memory = std::aligned_alloc(
      kBytesAlignment, (size + kBytesAlignment - 1) / kBytesAlignment * kBytesAlignment);
  MOEBIUS_CHECK(memory != nullptr);
  owner_ = std::shared_ptr<void>(memory, std::free);
  data_ = static_cast<uint8_t*>(memory);
}

SharedBytes BytesBuilder::Share() && {
  SharedBytes bytes(std::move(owner_), data_, size_);
  data_ = nullptr;
  size_ = 0;
  return bytes;
}

size_t PayloadBytes(const Payload& payload) {
  size_t bytes = 0;
  for (const SharedBytes& piece : payload) bytes += piece.size();
  return bytes;
}

Payload SlicePayload(const Payload& payload, size_t begin, size_t end) {
  MOEBIUS_CHECK_LE(begin, end);
  Payload slice;
  size_t piece_begin = 0;
  for (const SharedBytes& piece : payload) {
    const size_t piece_end = piece_begin + piece.size();
    const size_t from = begin > piece_begin ? begin : piece_begin;
    const size_t to = end < piece_end ? end : piece_end;
    if (from < to) slice.push_back(piece.Slice(from - piece_begin, to - piece_begin));
    piece_begin = piece_end;
  }
  MOEBIUS_CHECK_LE(end, piece_begin);
  return slice;
}

void CopyPayload(const Payload& payload, uint8_t* out) {
  for (const SharedBytes& piece : payload) {
    if (piece.empty()) continue;
    std::memcpy(out, piece.data(), piece.size());
    out += piece.size();
  }
}

}  // namespace moebius
