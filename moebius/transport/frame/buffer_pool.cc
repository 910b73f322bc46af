// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// Below this the allocator reuses memory without the system's help.
constexpr size_t kMinPooledBytes = 16 << 10;

// The next of four sizes per doubling, so that buffers of nearly equal sizes serve one another.
size_t CapacityFor(size_t size) {
  const size_t step = std::bit_floor(size) / 4;
  return (size + step - 1) / step * step;
}

}  // namespace

class BufferPool::Store {
 public:
  explicit Store(uint64_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  ~Store() { Clear(); }

  // Null: there is none of that capacity.
  uint8_t* Take(size_t capacity) MOEBIUS_EXCLUDES(mutex_);
  // A buffer that nobody uses any more.
  void Put(uint8_t* memory, size_t capacity) MOEBIUS_EXCLUDES(mutex_);
  void Age() MOEBIUS_EXCLUDES(mutex_);
  void Clear() MOEBIUS_EXCLUDES(mutex_) { Drop(TakeOlderThan(UINT64_MAX)); }
  // Nothing is kept from now on.
  void Close() MOEBIUS_EXCLUDES(mutex_);
  BufferPoolFigures figures() const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Idle {
    uint8_t* memory = nullptr;
    uint64_t since = 0;       // puts before it
    uint64_t generation = 0;  // calls of Age before it
  };

  static void Drop(const std::vector<uint8_t*>& buffers) {
    for (uint8_t* const memory : buffers) std::free(memory);
  }
  std::vector<uint8_t*> TakeOlderThan(uint64_t generation) MOEBIUS_EXCLUDES(mutex_);
  uint8_t* TakeOldest() MOEBIUS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  uint64_t max_idle_bytes_ MOEBIUS_GUARDED_BY(mutex_);
  // By capacity; the longest idle in front, the one that caches may still hold at the back.
  std::map<size_t, std::deque<Idle>> idle_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t num_puts_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  BufferPoolFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
};

uint8_t* BufferPool::Store::Take(size_t capacity) {
  MutexLock lock(mutex_);
  const auto found = idle_.find(capacity);
  if (found == idle_.end()) {
    ++figures_.num_fresh;
    return nullptr;
  }
  uint8_t* const memory = found->second.back().memory;
  found->second.pop_back();
  if (found->second.empty()) idle_.erase(found);
  figures_.idle_bytes -= capacity;
  ++figures_.num_reused;
  return memory;
}

uint8_t* BufferPool::Store::TakeOldest() {
  const auto oldest = std::min_element(
      idle_.begin(), idle_.end(),
      [](const auto& a, const auto& b) { return a.second.front().since < b.second.front().since; });
  MOEBIUS_CHECK(oldest != idle_.end());
  uint8_t* const memory = oldest->second.front().memory;
  figures_.idle_bytes -= oldest->first;
  ++figures_.num_dropped;
  oldest->second.pop_front();
  if (oldest->second.empty()) idle_.erase(oldest);
  return memory;
}

void BufferPool::Store::Put(uint8_t* memory, size_t capacity) {
  std::vector<uint8_t*> dropped;
  {
    MutexLock lock(mutex_);
    if (capacity > max_idle_bytes_) {
      dropped.push_back(memory);
      ++figures_.num_dropped;
    } else {
      while (figures_.idle_bytes > max_idle_bytes_ - capacity) dropped.push_back(TakeOldest());
      idle_[capacity].push_back({memory, num_puts_++, generation_});
      figures_.idle_bytes += capacity;
    }
  }
  Drop(dropped);
}

std::vector<uint8_t*> BufferPool::Store::TakeOlderThan(uint64_t generation) {
  std::vector<uint8_t*> taken;
  MutexLock lock(mutex_);
  for (auto it = idle_.begin(); it != idle_.end();) {
    std::deque<Idle>& buffers = it->second;
    while (!buffers.empty() && buffers.front().generation < generation) {
      taken.push_back(buffers.front().memory);
      buffers.pop_front();
      figures_.idle_bytes -= it->first;
      ++figures_.num_dropped;
    }
    it = buffers.empty() ? idle_.erase(it) : std::next(it);
  }
  return taken;
}

void BufferPool::Store::Age() {
  uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    generation = generation_++;
  }
  Drop(TakeOlderThan(generation));
}

void BufferPool::Store::Close() {
  {
    MutexLock lock(mutex_);
    max_idle_bytes_ = 0;
  }
  Clear();
}

BufferPoolFigures BufferPool::Store::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

BufferPool::BufferPool(uint64_t max_idle_bytes) : store_(std::make_shared<Store>(max_idle_bytes)) {}

BufferPool::~BufferPool() { store_->Close(); }

BytesBuilder BufferPool::Make(size_t size) {
  if (size < kMinPooledBytes) return BytesBuilder(size);
  const size_t capacity = CapacityFor(size);
  uint8_t* memory = store_->Take(capacity);
  if (memory == nullptr) {
    memory = static_cast<uint8_t*>(std::aligned_alloc(kBytesAlignment, capacity));
    MOEBIUS_CHECK(memory != nullptr);
  }
  return BytesBuilder(std::shared_ptr<void>(memory,
                                            [store = store_, capacity](void* bytes) {
                                              store->Put(static_cast<uint8_t*>(bytes), capacity);
                                            }),
                      memory, size);
}

void BufferPool::Age() { store_->Age(); }

void BufferPool::Clear() { store_->Clear(); }

BufferPoolFigures BufferPool::figures() const { return store_->figures(); }

}  // namespace moebius
