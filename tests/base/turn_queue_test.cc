// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/turn_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(TurnQueueTest, RefusesWhatDoesNotFitAndLeavesItAlone) {
  TurnQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.TryPush(first));
  EXPECT_FALSE(queue.TryPush(second));
  EXPECT_EQ(*second, 2);
  EXPECT_EQ(**queue.PopAndTakeTurn(), 1);
  EXPECT_TRUE(queue.TryPush(second));
}

TEST(TurnQueueTest, GivesATurnOnlyWhenNothingWaitsAndNobodyHasOne) {
  TurnQueue<int> queue(4);
  EXPECT_TRUE(queue.TryTakeTurn());
  EXPECT_FALSE(queue.TryTakeTurn());
  queue.EndTurn();
  int one = 1;
  EXPECT_TRUE(queue.TryPush(one));
  EXPECT_FALSE(queue.TryTakeTurn());
  EXPECT_EQ(queue.PopAndTakeTurn(), 1);
  EXPECT_FALSE(queue.TryTakeTurn());
  queue.EndTurn();
  EXPECT_TRUE(queue.TryTakeTurn());
}

TEST(TurnQueueTest, GivesOutWhatItHoldsAfterItIsClosedAndWaitsForTheLastTurn) {
  TurnQueue<int> queue(4);
  int one = 1;
  EXPECT_TRUE(queue.TryTakeTurn());
  EXPECT_TRUE(queue.TryPush(one));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(one));
  std::atomic<bool> has_ended = false;
  std::thread popping([&] {
    EXPECT_EQ(queue.PopAndTakeTurn(), 1);
    EXPECT_TRUE(has_ended.load());
    queue.EndTurn();
    EXPECT_EQ(queue.PopAndTakeTurn(), std::nullopt);
  });
  has_ended.store(true);
  queue.EndTurn();
  popping.join();
  EXPECT_FALSE(queue.TryTakeTurn());
}

TEST(TurnQueueTest, HandlesEveryElementOnceAndOneAtATimeWhoeverDoesIt) {
  constexpr int kBringers = 3, kEach = 2000;
  TurnQueue<int> queue(kBringers * kEach);
  int handled = 0;  // belongs to the turn
  std::atomic<int> by_bringers = 0;
  std::thread handler([&] {
    while (queue.PopAndTakeTurn().has_value()) {
      ++handled;
      queue.EndTurn();
    }
  });
  std::vector<std::thread> bringers;
  for (int bringer = 0; bringer < kBringers; ++bringer) {
    bringers.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        if (queue.TryTakeTurn()) {
          ++handled;
          by_bringers.fetch_add(1);
          queue.EndTurn();
        } else {
          ASSERT_TRUE(queue.TryPush(i));
        }
      }
    });
  }
  for (std::thread& bringer : bringers) bringer.join();
  queue.Close();
  handler.join();
  EXPECT_EQ(handled, kBringers * kEach);
  EXPECT_GE(by_bringers.load(), 1);  // the first to come at the latest
}

}  // namespace
}  // namespace moebius
