// SPDX-License-Identifier: Apache-2.0
#include "router_service/step_errands.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(StepErrandsTest, RunsABodyOnTheSteppingThreadAndReturnsWhenItHasEnded) {
  StepErrands errands;
  std::atomic<bool> waits{false};
  std::thread::id runner;
  uint64_t step = 7;
  absl::Status status;
  std::thread caller([&] {
    status = errands.Run(
        [&](uint64_t* next_step) {
          runner = std::this_thread::get_id();
          ++*next_step;
        },
        absl::InfiniteDuration(), [&] { waits = true; });
  });
  while (!waits) std::this_thread::yield();
  EXPECT_TRUE(errands.RunOne(&step));
  caller.join();
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(runner, std::this_thread::get_id());
  EXPECT_EQ(step, 8u);
  EXPECT_FALSE(errands.RunOne(&step));
}

TEST(StepErrandsTest, GivesUpWhenItsTurnDoesNotCome) {
  StepErrands errands;
  bool ran = false;
  const absl::Status status =
      errands.Run([&](uint64_t*) { ran = true; }, absl::Milliseconds(1), [] {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  uint64_t step = 0;
  EXPECT_FALSE(errands.RunOne(&step));
  EXPECT_FALSE(ran);
}

TEST(StepErrandsTest, RefusesThoseThatWaitAtShutdown) {
  StepErrands errands;
  absl::Status status;
  std::atomic<bool> waits{false};
  std::thread caller([&] {
    status = errands.Run([](uint64_t*) {}, absl::InfiniteDuration(), [&] { waits = true; });
  });
  while (!waits) std::this_thread::yield();
  errands.Shutdown();
  caller.join();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_TRUE(absl::IsUnavailable(errands.Run([](uint64_t*) {}, absl::InfiniteDuration(), [] {})));
}

}  // namespace
}  // namespace moebius
