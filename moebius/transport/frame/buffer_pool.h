// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "moebius/transport/frame/shared_bytes.h"

namespace moebius {

struct BufferPoolFigures {
  uint64_t idle_bytes = 0;   // kept and used by nobody, now
  uint64_t num_fresh = 0;    // buffers that were new memory, since the start
  uint64_t num_reused = 0;   // that were kept ones
  uint64_t num_dropped = 0;  // that were given back to the system
};

/// Memory of payloads that nobody uses any more, kept to be filled again: in fresh memory every
/// page costs a fault, which is more than the copy into it.
///
/// Invariants:
/// 1. Idle bytes <= max_idle_bytes; what has been idle longest goes first.
/// 2. A buffer is in use once, or idle. It comes back when the last SharedBytes lets go of it.
/// 3. A buffer has at most a quarter more bytes than were asked for.
///
/// Thread-safe. Buffers in use outlive the pool.
class BufferPool {
 public:
  /// 0: nothing is kept.
  explicit BufferPool(uint64_t max_idle_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// What BytesBuilder(size) gives, in kept memory where there is some of the size. The contents
  /// are whatever was there. Small buffers are the allocator's own matter.
  BytesBuilder Make(size_t size);

  /// Gives back what has been idle since the previous call.
  void Age();
  /// Gives back all that is idle.
  void Clear();

  BufferPoolFigures figures() const;

 private:
  class Store;
  const std::shared_ptr<Store> store_;  // shared with the buffers in use
};

}  // namespace moebius
