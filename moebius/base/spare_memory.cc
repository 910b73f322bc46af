// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/spare_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>

#include "moebius/base/mutex.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, size) ((void)(begin), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(begin, size) ((void)(begin), (void)(size))
#endif

namespace moebius {
namespace {

constexpr std::align_val_t kAlignment{kSpareBlockAlignment};
constexpr size_t kMinBlockBytes = 64;
constexpr size_t kNumClasses = std::bit_width(kMaxSpareBlockBytes / kMinBlockBytes);

// The smallest power of two, as its place among the classes.
size_t ClassOf(size_t size) {
  const size_t blocks = (std::max(size, kMinBlockBytes) + kMinBlockBytes - 1) / kMinBlockBytes;
  return static_cast<size_t>(std::bit_width(blocks - 1));
}

// Idle blocks of one size, in a list that lives in the blocks themselves.
class SizeClass {
 public:
  // Null: there is none.
  void* Take() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (first_ == nullptr) {
      ++num_fresh_;
      return nullptr;
    }
    Idle* const block = first_;
    first_ = block->next;
    --num_idle_;
    ++num_reused_;
    return block;
  }

  // False: it keeps enough.
  bool Put(void* memory, size_t block_bytes) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if ((num_idle_ + 1) * block_bytes > kMaxIdleBytesPerClass) return false;
    first_ = new (memory) Idle{first_};
    ++num_idle_;
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(memory) + sizeof(Idle),
                              block_bytes - sizeof(Idle));
    return true;
  }

  void AddTo(SpareMemoryFigures* figures, size_t block_bytes) const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    figures->idle_bytes += num_idle_ * block_bytes;
    figures->num_fresh += num_fresh_;
    figures->num_reused += num_reused_;
  }

 private:
  struct Idle {
    Idle* next;
  };

  mutable Mutex mutex_;
  Idle* first_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  size_t num_idle_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t num_fresh_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t num_reused_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

using Classes = std::array<SizeClass, kNumClasses>;

// Never destroyed: threads that outlive main give their blocks back.
Classes& AllClasses() {
  static Classes* const classes = new Classes;
  return *classes;
}

}  // namespace

void* TakeSpareBlock(size_t size) {
  if (size > kMaxSpareBlockBytes) return ::operator new(size, kAlignment);
  const size_t index = ClassOf(size);
  const size_t block_bytes = kMinBlockBytes << index;
  void* block = AllClasses()[index].Take();
  if (block == nullptr) return ::operator new(block_bytes, kAlignment);
  ASAN_UNPOISON_MEMORY_REGION(block, block_bytes);
  return block;
}

void PutSpareBlock(void* block, size_t size) {
  if (size <= kMaxSpareBlockBytes) {
    const size_t index = ClassOf(size);
    if (AllClasses()[index].Put(block, kMinBlockBytes << index)) return;
  }
  ::operator delete(block, kAlignment);
}

SpareMemoryFigures GetSpareMemoryFigures() {
  SpareMemoryFigures figures;
  for (size_t i = 0; i < kNumClasses; ++i) AllClasses()[i].AddTo(&figures, kMinBlockBytes << i);
  return figures;
}

}  // namespace moebius
