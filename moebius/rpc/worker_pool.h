// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "moebius/base/bounded_queue.h"

namespace moebius {

/// Threads for what RPCs hand over: gRPC's own threads neither compute nor wait. Thread-safe.
class WorkerPool {
 public:
  /// Both >= 1.
  WorkerPool(int num_threads, size_t max_queued);
  /// Runs what is queued and returns when it has ended. Not on one of the pool's threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// False when the queue is full: the caller refuses the work.
  bool TryRun(std::function<void()> task) { return queue_.TryPush(task); }

  size_t capacity() const { return queue_.capacity(); }

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace moebius
