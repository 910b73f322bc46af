// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace moebius {

// Small blocks of memory that come and go with every message, kept for the next one of nearly the
// same size: a step that has run before asks the system's allocator for nothing. One process has
// one store. A block may be given back on another thread than the one that took it.
//
// Invariants:
// 1. A size class keeps at most kMaxIdleBytesPerClass that nobody uses; the rest goes back to the
//    allocator.
// 2. A block of more than kMaxSpareBlockBytes is the allocator's own matter.
//
// Thread-safe. Where the address sanitizer watches, idle blocks are poisoned.

inline constexpr size_t kMaxSpareBlockBytes = 32 << 10;
inline constexpr size_t kMaxIdleBytesPerClass = 512 << 10;
inline constexpr size_t kSpareBlockAlignment = 64;

/// At least `size` bytes on a boundary of kSpareBlockAlignment, contents unspecified.
void* TakeSpareBlock(size_t size);
/// A block of TakeSpareBlock(size).
void PutSpareBlock(void* block, size_t size);

struct SpareMemoryFigures {
  uint64_t idle_bytes = 0;  // kept and used by nobody, now
  uint64_t num_fresh = 0;   // blocks that were new memory, since the start
  uint64_t num_reused = 0;  // that were kept ones
};
SpareMemoryFigures GetSpareMemoryFigures();

/// The allocator of containers and shared objects that live in such blocks.
template <typename T>
struct SpareAllocator {
  using value_type = T;
  SpareAllocator() = default;
  template <typename U>
  SpareAllocator(const SpareAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    static_assert(alignof(T) <= kSpareBlockAlignment);
    return static_cast<T*>(TakeSpareBlock(count * kBytes));
  }
  void deallocate(T* block, size_t count) { PutSpareBlock(block, count * kBytes); }
  friend bool operator==(const SpareAllocator&, const SpareAllocator&) { return true; }

 private:
  static constexpr size_t kBytes = sizeof(T);  // NOLINT(bugprone-sizeof-expression): or a pointer
};

/// Containers whose nodes are spare blocks. A std::deque, too, takes and gives back one every few
/// elements, for as long as something passes through it.
template <typename T>
using SpareDeque = std::deque<T, SpareAllocator<T>>;
template <typename T>
using SpareSet = std::set<T, std::less<T>, SpareAllocator<T>>;
template <typename Key, typename Value>
using SpareMap = std::map<Key, Value, std::less<Key>, SpareAllocator<std::pair<const Key, Value>>>;

}  // namespace moebius
