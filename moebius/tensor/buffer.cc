// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

Buffer::Buffer(size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  const size_t alignment = size_bytes >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  const size_t rounded = (size_bytes + alignment - 1) / alignment * alignment;
  data_ = std::aligned_alloc(alignment, rounded);
  MOEBIUS_CHECK(data_ != nullptr);
  if (alignment == kHugePageBytes) madvise(data_, rounded, MADV_HUGEPAGE);
  std::memset(data_, 0, size_bytes);
}

Buffer::~Buffer() { std::free(data_); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    std::free(data_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

}  // namespace moebius
