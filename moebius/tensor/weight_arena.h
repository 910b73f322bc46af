// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/base/huge_pages.h"

namespace moebius {

/// Memory for the packed weights of one service: one range, 2 MiB-aligned, advised for huge pages,
/// whose pages exist from the first write on. It is a mapping of its own, so that the kernel's
/// count of its huge pages is its own, too.
///
/// Thread-safe for disjoint ranges, save Clear. Neither moves nor copies: matrices borrow from it.
class WeightArena {
 public:
  /// All zero. RESOURCE_EXHAUSTED where the address space or the host has no room. Zero bytes are
  /// ordinary.
  static absl::StatusOr<std::unique_ptr<WeightArena>> Make(int64_t size_bytes);
  ~WeightArena();
  WeightArena(const WeightArena&) = delete;
  WeightArena& operator=(const WeightArena&) = delete;

  absl::Span<uint8_t> bytes() { return bytes_; }
  absl::Span<const uint8_t> bytes() const { return bytes_; }
  /// [begin, begin + size), inside the arena.
  absl::Span<uint8_t> Range(int64_t begin, int64_t size);

  /// Gives the pages back; all is zero again.
  void Clear();
  /// What was asked for and, as of now, got.
  HugePages huge_pages() const;

 private:
  WeightArena() = default;

  void* reserved_ = nullptr;  // the arena with what aligns it and keeps other mappings away
  size_t reserved_bytes_ = 0;
  absl::Span<uint8_t> bytes_;
};

/// Hands out an arena's range piece by piece, each 64-byte aligned. Not thread-safe.
class ArenaCursor {
 public:
  explicit ArenaCursor(absl::Span<uint8_t> bytes) : bytes_(bytes) {}
  /// The next `size_bytes`; a CHECK where they are not there.
  absl::Span<uint8_t> Take(int64_t size_bytes);
  /// What Take advances by.
  static int64_t Taken(int64_t size_bytes) { return (size_bytes + 63) / 64 * 64; }

 private:
  absl::Span<uint8_t> bytes_;
};

}  // namespace moebius
