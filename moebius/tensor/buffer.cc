// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/buffer.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

std::align_val_t AlignmentOf(size_t size_bytes) {
  return std::align_val_t(size_bytes >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes);
}

void Free(void* data, size_t size_bytes) {
  if (data != nullptr) ::operator delete(data, AlignmentOf(size_bytes));
}

}  // namespace

Buffer::Buffer(size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  const size_t alignment = static_cast<size_t>(AlignmentOf(size_bytes));
  const size_t rounded = (size_bytes + alignment - 1) / alignment * alignment;
  // By operator new: where there is no memory, the process's new handler has the word.
  data_ = ::operator new(rounded, AlignmentOf(size_bytes));
  // Whole pages only: the last part of one would take all of its memory.
  if (alignment == kHugePageBytes) {
    madvise(data_, size_bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  std::memset(data_, 0, size_bytes);
}

Buffer Buffer::Borrow(absl::Span<uint8_t> bytes) {
  MOEBIUS_CHECK_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kCacheLineBytes, uintptr_t{0});
  Buffer buffer;
  buffer.data_ = bytes.data();
  buffer.size_bytes_ = bytes.size();
  buffer.is_borrowed_ = true;
  return buffer;
}

Buffer::~Buffer() {
  if (!is_borrowed_) Free(data_, size_bytes_);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (!is_borrowed_) Free(data_, size_bytes_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    is_borrowed_ = std::exchange(other.is_borrowed_, false);
  }
  return *this;
}

}  // namespace moebius
