// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/weight_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius {
namespace {

constexpr size_t kAlignment = static_cast<size_t>(kHugePageBytes);

absl::Status NoRoom(int64_t size_bytes) {
  return WithHint(absl::ResourceExhaustedError(absl::StrCat(
                      "weights of ", size_bytes, " bytes find no memory: ", std::strerror(errno))),
                  "raise the memory limit, or spread the experts over hosts");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightArena>> WeightArena::Make(int64_t size_bytes) {
  auto arena = std::unique_ptr<WeightArena>(new WeightArena());
  if (size_bytes == 0) return arena;
  const size_t size = static_cast<size_t>(size_bytes);
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  // A part of two alignments around it stays inaccessible: a neighbour with the same rights would
  // become one mapping with it.
  arena->reserved_bytes_ = rounded + 2 * kAlignment;
  void* const reserved = mmap(nullptr, arena->reserved_bytes_, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return NoRoom(size_bytes);
  arena->reserved_ = reserved;
  const size_t past = reinterpret_cast<uintptr_t>(reserved) % kAlignment;
  uint8_t* const data = static_cast<uint8_t*>(reserved) + (kAlignment - past);
  if (mprotect(data, rounded, PROT_READ | PROT_WRITE) != 0) return NoRoom(size_bytes);
  // Whole pages only: the last part of one would take all of its memory.
  const size_t advised = size / kAlignment * kAlignment;
  if (advised > 0) madvise(data, advised, MADV_HUGEPAGE);
  arena->bytes_ = absl::MakeSpan(data, size);
  return arena;
}

WeightArena::~WeightArena() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
}

absl::Span<uint8_t> WeightArena::Range(int64_t begin, int64_t size) {
  MOEBIUS_CHECK_GE(begin, int64_t{0});
  MOEBIUS_CHECK_LE(begin + size, static_cast<int64_t>(bytes_.size()));
  return bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
}

void WeightArena::Clear() {
  // Anonymous and private: what is read afterwards is zero.
  if (!bytes_.empty()) {
    MOEBIUS_CHECK_EQ(madvise(bytes_.data(), bytes_.size(), MADV_DONTNEED), 0);
  }
}

HugePages WeightArena::huge_pages() const {
  HugePages pages;
  pages.asked_bytes = static_cast<int64_t>(bytes_.size()) / kHugePageBytes * kHugePageBytes;
  if (pages.asked_bytes > 0) pages.got_bytes = HugePageBytesAt(bytes_.data());
  return pages;
}

absl::Span<uint8_t> ArenaCursor::Take(int64_t size_bytes) {
  const auto step = static_cast<size_t>(Taken(size_bytes));
  MOEBIUS_CHECK_LE(step, bytes_.size());
  const absl::Span<uint8_t> taken = bytes_.first(static_cast<size_t>(size_bytes));
  bytes_.remove_prefix(step);
  return taken;
}

}  // namespace moebius
