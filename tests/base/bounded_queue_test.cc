// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/bounded_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(BoundedQueueTest, RefusesWhatDoesNotFitAndLeavesItAlone) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  for (int i = 0; i < 2; ++i) {
    auto element = std::make_unique<int>(i);
    EXPECT_TRUE(queue.TryPush(element));
    EXPECT_EQ(element, nullptr);
  }
  auto third = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(third));
  EXPECT_EQ(*third, 2);
  EXPECT_EQ(**queue.TryPop(), 0);
  EXPECT_TRUE(queue.TryPush(third));
  EXPECT_EQ(**queue.Pop(), 1);
  EXPECT_EQ(**queue.Pop(), 2);
  EXPECT_FALSE(queue.TryPop().has_value());
}

TEST(BoundedQueueTest, GivesOutWhatItHoldsAfterItIsClosed) {
  BoundedQueue<int> queue(4);
  int one = 1;
  EXPECT_TRUE(queue.TryPush(one));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(one));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, BringsEveryElementFromManyThreadsOnce) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  BoundedQueue<int> queue(8);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < kEach; ++i) {
        int element = thread * kEach + i;
        while (!queue.TryPush(element)) std::this_thread::yield();
      }
    });
  }
  std::vector<int> seen(kThreads * kEach);
  std::vector<int> last(kThreads, -1);
  for (int i = 0; i < kThreads * kEach; ++i) {
    const int element = *queue.Pop();
    ++seen[static_cast<size_t>(element)];
    EXPECT_GT(element, last[static_cast<size_t>(element / kEach)]);
    last[static_cast<size_t>(element / kEach)] = element;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, std::vector<int>(kThreads * kEach, 1));
}

}  // namespace
}  // namespace moebius
