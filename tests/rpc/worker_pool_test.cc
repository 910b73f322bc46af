// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/worker_pool.h"

#include <atomic>

#include "gtest/gtest.h"

#include "moebius/base/mutex.h"

namespace moebius {
namespace {

TEST(WorkerPoolTest, RunsWhatItTookBeforeItEnds) {
  std::atomic<int> runs{0};
  {
    WorkerPool pool(2, 100);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool.TryRun([&runs] { ++runs; }));
  }
  EXPECT_EQ(runs, 100);
}

TEST(WorkerPoolTest, RefusesWhatItsQueueCannotHold) {
  Mutex mutex;
  std::atomic<int> begun{0};
  mutex.Lock();
  {
    WorkerPool pool(1, 2);
    const auto wait = [&] {
      ++begun;
      MutexLock lock(mutex);
    };
    ASSERT_TRUE(pool.TryRun(wait));
    while (begun == 0) std::this_thread::yield();
    EXPECT_TRUE(pool.TryRun(wait));
    EXPECT_TRUE(pool.TryRun(wait));
    EXPECT_FALSE(pool.TryRun(wait));
    mutex.Unlock();
  }
  EXPECT_EQ(begun, 3);
}

}  // namespace
}  // namespace moebius
