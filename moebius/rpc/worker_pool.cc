// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/worker_pool.h"

#include "moebius/base/check.h"

namespace moebius {

WorkerPool::WorkerPool(int num_threads, size_t max_queued) : queue_(max_queued) {
  MOEBIUS_CHECK_GE(num_threads, 1);
  for (int index = 0; index < num_threads; ++index) {
    threads_.emplace_back([this] {
      while (const auto task = queue_.Pop()) (*task)();
    });
  }
}

WorkerPool::~WorkerPool() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace moebius
