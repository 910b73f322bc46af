// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/executor.h"

#include <xmmintrin.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/float_environment.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// Each case runs with 1 to 4 threads: 1 takes the inline path, 3 divides nothing evenly.
class ExecutorTest : public testing::TestWithParam<int> {
 protected:
  Executor executor_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Threads, ExecutorTest, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(ExecutorTest, SaysHowManyThreadsItHas) { EXPECT_EQ(executor_.num_threads(), GetParam()); }

TEST_P(ExecutorTest, RunReturnsAfterTheBodyEnded) {
  bool ended = false;
  executor_.Run([&ended] { ended = true; });
  EXPECT_TRUE(ended);
}

TEST_P(ExecutorTest, RunsBodiesOnTheCallersThread) {
  std::thread::id body;
  executor_.Run([&body] { body = std::this_thread::get_id(); });
  EXPECT_EQ(body, std::this_thread::get_id());
}

TEST_P(ExecutorTest, LeavesTheCallersFloatEnvironmentAsItWas) {
  const ScopedFloatEnvironment restored_at_the_end;
  _mm_setcsr(0x1F80);
  executor_.Run([] { EXPECT_TRUE(HasFloatEnvironment()); });
  EXPECT_EQ(_mm_getcsr() & ~0x3Fu, 0x1F80u);
}

TEST_P(ExecutorTest, KnowsItsOwnThreads) {
  EXPECT_FALSE(Executor::OnExecutorThread());
  std::atomic<int> on_executor{0};
  executor_.Run([&] {
    EXPECT_TRUE(Executor::OnExecutorThread());
    executor_.ParallelFor(16, [&](int64_t, int) { on_executor += Executor::OnExecutorThread(); });
  });
  EXPECT_EQ(on_executor, 16);
  EXPECT_FALSE(Executor::OnExecutorThread());
}

TEST_P(ExecutorTest, RunInsideABodyRunsInline) {
  std::vector<int> order;
  executor_.Run([&] {
    order.push_back(1);
    executor_.Run([&] { order.push_back(2); });
    order.push_back(3);
  });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_P(ExecutorTest, ParallelForCallsEachIndexOnce) {
  for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    executor_.Run([&] {
      executor_.ParallelFor(count,
                            [&](int64_t index, int) { ++calls[static_cast<size_t>(index)]; });
    });
    for (int64_t index = 0; index < count; ++index) {
      ASSERT_EQ(calls[static_cast<size_t>(index)], 1) << index << " of " << count;
    }
  }
}

TEST_P(ExecutorTest, ANegativeCountCallsNothing) {
  executor_.Run([&] { executor_.ParallelFor(-3, [](int64_t, int) { ADD_FAILURE(); }); });
}

TEST_P(ExecutorTest, CallsWithOneThreadIndexNeverOverlap) {
  struct alignas(64) Scratch {
    std::atomic<int> users{0};
    int64_t calls = 0;  // plain: the thread sanitizer sees an overlap too
  };
  std::vector<Scratch> scratch(static_cast<size_t>(GetParam()));
  executor_.Run([&] {
    executor_.ParallelFor(5000, [&](int64_t, int thread_index) {
      ASSERT_GE(thread_index, 0);
      ASSERT_LT(thread_index, GetParam());
      Scratch& mine = scratch[static_cast<size_t>(thread_index)];
      ASSERT_EQ(mine.users.fetch_add(1), 0);
      ++mine.calls;
      mine.users.fetch_sub(1);
    });
  });
  int64_t calls = 0;
  for (const Scratch& one : scratch) calls += one.calls;
  EXPECT_EQ(calls, 5000);
}

TEST_P(ExecutorTest, UsesAllThreadsWhenTasksWaitForEachOther) {
  // Every task waits until all threads have come, which ends only if each thread takes one.
  std::atomic<int> arrived{0};
  executor_.Run([&] {
    executor_.ParallelFor(GetParam(), [&](int64_t, int) {
      ++arrived;
      while (arrived < GetParam()) std::this_thread::yield();
    });
  });
  EXPECT_EQ(arrived, GetParam());
}

TEST_P(ExecutorTest, NestedParallelForRunsInline) {
  std::atomic<int64_t> sum{0};
  executor_.Run([&] {
    executor_.ParallelFor(8, [&](int64_t outer, int) {
      const std::thread::id mine = std::this_thread::get_id();
      executor_.ParallelFor(10, [&](int64_t inner, int) {
        EXPECT_EQ(std::this_thread::get_id(), mine);
        sum += outer * 10 + inner;
      });
    });
  });
  EXPECT_EQ(sum, 79 * 80 / 2);
}

TEST_P(ExecutorTest, SuccessiveLoopsSeeEachOthersResults) {
  std::vector<int64_t> values(97, 1);
  executor_.Run([&] {
    for (int round = 0; round < 200; ++round) {
      executor_.ParallelFor(97, [&](int64_t index, int) {
        values[static_cast<size_t>(index)] += values[static_cast<size_t>(index)] % 3;
      });
    }
  });
  for (const int64_t value : values) EXPECT_EQ(value, values[0]);
}

// Followers that wake late find their loop closed, or join the next one: never a loop that is over.
TEST_P(ExecutorTest, ManyShortLoopsCallEachIndexOnce) {
  constexpr int64_t kLoops = 20000;
  std::array<std::atomic<int64_t>, 3> calls = {};
  executor_.Run([&] {
    for (int64_t loop = 0; loop < kLoops; ++loop) {
      const int64_t count = 1 + loop % 3;
      std::array<std::atomic<int64_t>*, 3> own = {};  // gone with the loop
      for (int64_t i = 0; i < count; ++i)
        own[static_cast<size_t>(i)] = &calls[static_cast<size_t>(i)];
      executor_.ParallelFor(count, [&](int64_t index, int) { ++*own[static_cast<size_t>(index)]; });
      ASSERT_EQ(calls[0].load(), loop + 1);
    }
  });
  EXPECT_EQ(calls[1].load(), kLoops * 2 / 3);
  EXPECT_EQ(calls[2].load(), kLoops / 3);
}

TEST_P(ExecutorTest, EveryThreadFlushesDenormals) {
  ScopedFloatEnvironment restored_at_the_end;
  _mm_setcsr(0x1F80);  // the caller's own mode must not matter
  std::atomic<int> arrived{0};
  std::atomic<int> right{0};
  executor_.Run([&] {
    executor_.ParallelFor(GetParam(), [&](int64_t, int) {
      ++arrived;
      while (arrived < GetParam()) std::this_thread::yield();
      volatile float smallest_normal = 0x1p-126f;
      volatile float denormal = 0x1p-149f;
      const bool flushes_results = smallest_normal * 0.5f == 0.0f;
      const bool flushes_inputs = denormal * 0x1p100f == 0.0f;
      right += HasFloatEnvironment() && flushes_results && flushes_inputs;
    });
  });
  EXPECT_EQ(right, GetParam());
}

TEST_P(ExecutorTest, RunsOneBodyAtATimeForManyCallers) {
  int inside = 0;  // plain: bodies are ordered by the executor alone
  int64_t total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        executor_.Run([&] {
          ASSERT_EQ(inside++, 0);
          ++total;
          --inside;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 800);
}

TEST_P(ExecutorTest, RunsBodiesInTheOrderOfArrival) {
  std::vector<int> order;
  Mutex mutex;
  int arrived = 0;  // callers that are about to queue, under mutex
  std::atomic<bool> release{false};
  std::thread blocker([&] {
    executor_.Run([&] {
      while (!release) std::this_thread::yield();
    });
  });
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 5; ++caller) {
    callers.emplace_back([&, caller] {
      {
        MutexLock lock(mutex);
        ++arrived;
      }
      executor_.Run([&] { order.push_back(caller); });
    });
    // The next one starts when this one has queued: it said so, and then had time to take its
    // ticket. A caller that is late can only make the test pass for the wrong reason, never fail.
    while (true) {
      MutexLock lock(mutex);
      if (arrived == caller + 1) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  release = true;
  blocker.join();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_P(ExecutorTest, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 20; ++i) Executor idle(GetParam());
}

TEST(ExecutorsTest, OneBodyMayUseItsOwnExecutorWhileAnotherRuns) {
  Executor first(2);
  Executor second(2);
  std::atomic<int> sum{0};
  std::thread other(
      [&] { second.Run([&] { second.ParallelFor(100, [&](int64_t, int) { ++sum; }); }); });
  first.Run([&] { first.ParallelFor(100, [&](int64_t, int) { ++sum; }); });
  other.join();
  EXPECT_EQ(sum, 200);
}

TEST(ExecutorDeathTest, ParallelForOutsideABodyIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Executor executor(2);
        executor.ParallelFor(1, [](int64_t, int) {});
      },
      "on_executor_thread");
}

TEST(ExecutorDeathTest, NeedsAThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Executor executor(0), "num_threads >= 1");
}

TEST(DefaultNumThreadsTest, IsAtLeastOneAndAtMostTheMachines) {
  EXPECT_GE(DefaultNumThreads(), 1);
  EXPECT_LE(DefaultNumThreads(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace moebius
