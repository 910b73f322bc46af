// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/mutex.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(MutexTest, OneThreadAtATimeIsInside) {
  Mutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 10'000; ++step) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40'000);
}

TEST(CondVarTest, WakesAWaiterThatChecksItsCondition) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      MutexLock lock(mutex);
      while (turn % 2 == 0) changed.Wait(mutex);
      ++turn;
      changed.Signal();
    }
  });
  for (int i = 0; i < 1000; ++i) {
    MutexLock lock(mutex);
    ++turn;
    changed.Signal();
    while (turn % 2 == 1) changed.Wait(mutex);
  }
  other.join();
  EXPECT_EQ(turn, 2000);
}

TEST(CondVarTest, SignalAllWakesEveryWaiter) {
  Mutex mutex;
  CondVar changed;
  bool open = false;
  int through = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      MutexLock lock(mutex);
      while (!open) changed.Wait(mutex);
      ++through;
    });
  }
  {
    MutexLock lock(mutex);
    open = true;
    changed.SignalAll();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(through, 4);
}

TEST(CondVarTest, AWaitWithoutSignalTimesOut) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  bool timed_out = false;
  while (!timed_out) timed_out = changed.WaitWithTimeout(mutex, absl::Milliseconds(1));
  EXPECT_TRUE(timed_out);
}

}  // namespace
}  // namespace moebius
