// SPDX-License-Identifier: Apache-2.0
#include "expert_service/dispatch_queue.h"

#include <string>

#include "gtest/gtest.h"

namespace moebius {
namespace {

class DispatchQueueTest : public testing::Test {
 protected:
  // A dispatch of `bytes` that is told apart by its step.
  static WaitingDispatch Dispatch(Lane lane, uint64_t step, absl::Duration arrived,
                                  uint32_t source = 1, size_t bytes = 64) {
    WaitingDispatch dispatch;
    dispatch.source = PeerId(source);
    dispatch.lane = lane;
    dispatch.message.key.step = step;
    dispatch.message.metadata = SharedBytes::Copy(std::string(bytes, 'm'));
    dispatch.arrived = arrived;
    return dispatch;
  }

  static bool Push(DispatchQueue& queue, WaitingDispatch dispatch) {
    return queue.TryPush(dispatch);
  }

  // The steps in the order in which they are served, one a millisecond.
  static std::string Order(DispatchQueue& queue, absl::Duration now) {
    std::string order;
    while (const auto dispatch = queue.Pop(now)) {
      order += (dispatch->lane == Lane::kDecode ? 'd' : 'b');
      order += std::to_string(dispatch->message.key.step) + " ";
      now += absl::Milliseconds(1);
    }
    return order;
  }
};

TEST_F(DispatchQueueTest, ServesDecodeBeforeBulkAndEachInItsOrder) {
  DispatchQueue queue({});
  EXPECT_FALSE(queue.Pop(absl::ZeroDuration()).has_value());
  for (uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kBulk, step, absl::ZeroDuration())));
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kDecode, step, absl::ZeroDuration())));
  }
  EXPECT_EQ(Order(queue, absl::Milliseconds(1)), "d0 d1 d2 b0 b1 b2 ");
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST_F(DispatchQueueTest, AgedBulkTakesEverySecondTurn) {
  DispatchQueue queue({});
  for (uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kBulk, step, absl::ZeroDuration())));
  }
  for (uint64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kDecode, step, absl::Milliseconds(25))));
  }
  EXPECT_EQ(Order(queue, absl::Milliseconds(25)), "b0 d0 b1 d1 b2 d2 d3 d4 ");
}

TEST_F(DispatchQueueTest, NoDecodeLoadHoldsBulkForLongerThanItsPatience) {
  DispatchQueue queue({});
  absl::Duration now = absl::Milliseconds(1);
  ASSERT_TRUE(Push(queue, Dispatch(Lane::kBulk, 7, now)));
  bool served = false;
  uint64_t decoded = 0;
  for (; !served && decoded < 1000; now += absl::Milliseconds(1)) {
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kDecode, 0, now)));
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kDecode, 1, now)));
    const auto dispatch = queue.Pop(now);
    served = dispatch->lane == Lane::kBulk;
    decoded += served ? 0 : 1;
  }
  EXPECT_TRUE(served);
  EXPECT_EQ(decoded, 20u);
}

TEST_F(DispatchQueueTest, RefusesBeyondItsBoundsAndLeavesWhatItRefuses) {
  DispatchQueueLimits limits;
  limits.max_dispatches = 2;
  limits.max_bytes = 200;
  DispatchQueue queue(limits);
  ASSERT_TRUE(Push(queue, Dispatch(Lane::kBulk, 0, absl::ZeroDuration(), 1, 1024)))
      << "one into an empty queue always fits: else it could never be served";
  WaitingDispatch second = Dispatch(Lane::kDecode, 1, absl::ZeroDuration());
  EXPECT_FALSE(queue.TryPush(second));
  EXPECT_EQ(MessageBytes(second.message), 64u);
  queue.Pop(absl::ZeroDuration());
  ASSERT_TRUE(queue.TryPush(second));
  ASSERT_TRUE(Push(queue, Dispatch(Lane::kBulk, 2, absl::ZeroDuration())));
  EXPECT_FALSE(Push(queue, Dispatch(Lane::kDecode, 3, absl::ZeroDuration())));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.bytes(), 128u);
}

TEST_F(DispatchQueueTest, ForgetsWhatADeadRouterSent) {
  DispatchQueue queue({});
  for (uint64_t step = 0; step < 4; ++step) {
    const auto source = static_cast<uint32_t>(1 + step % 2);
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kDecode, step, absl::ZeroDuration(), source)));
    ASSERT_TRUE(Push(queue, Dispatch(Lane::kBulk, step, absl::ZeroDuration(), source)));
  }
  EXPECT_EQ(queue.RemoveFrom(PeerId(1)), 4u);
  EXPECT_EQ(queue.RemoveFrom(PeerId(3)), 0u);
  EXPECT_EQ(queue.bytes(), 4 * 64u);
  EXPECT_EQ(Order(queue, absl::ZeroDuration()), "d1 d3 b1 b3 ");
}

}  // namespace
}  // namespace moebius
