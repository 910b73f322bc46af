// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/clock.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(FakeClockTest, MovesOnlyWhenTold) {
  FakeClock clock;
  EXPECT_EQ(clock.Now(), absl::ZeroDuration());
  EXPECT_EQ(clock.Now(), absl::ZeroDuration());
  clock.Advance(absl::Milliseconds(1500));
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(clock.Now(), absl::Nanoseconds(1'500'000'001));
}

TEST(FakeClockTest, AdvancesFromManyThreadsAddUp) {
  FakeClock clock;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&clock] {
      for (int step = 0; step < 1000; ++step) clock.Advance(absl::Microseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clock.Now(), absl::Milliseconds(4));
}

TEST(FakeClockDeathTest, NeverStepsBack) {
  FakeClock clock;
  EXPECT_DEATH(clock.Advance(-absl::Nanoseconds(1)), "by >= absl::ZeroDuration");
}

TEST(MonotonicClockTest, NeverStepsBack) {
  const Clock& clock = Clock::Monotonic();
  absl::Duration last = clock.Now();
  for (int i = 0; i < 10'000; ++i) {
    const absl::Duration now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(MonotonicClockTest, PassesInStepWithASleep) {
  const absl::Duration before = Clock::Monotonic().Now();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(Clock::Monotonic().Now() - before, absl::Milliseconds(10));
}

}  // namespace
}  // namespace moebius
