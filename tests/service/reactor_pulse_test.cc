// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/reactor_pulse.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

class ReactorPulseTest : public testing::Test {
 protected:
  ReactorPulseTest() {
    health_.WatchLoop("reactor", [pulse = pulse_] { return pulse->Look(); });
  }

  FakeClock clock_;
  Health health_{clock_};
  Reactor reactor_{clock_};
  const std::shared_ptr<ReactorPulse> pulse_ = std::make_shared<ReactorPulse>(reactor_);
};

TEST_F(ReactorPulseTest, AReactorThatRunsIsAliveHoweverSeldomSomebodyLooks) {
  for (int look = 0; look < 5; ++look) {
    reactor_.RunReady();
    clock_.Advance(absl::Minutes(10));
    EXPECT_TRUE(health_.Liveness().ok());
  }
}

TEST_F(ReactorPulseTest, OneThatStandsStillIsDeadAfterHalfAMinuteAndAliveAgainWhenItGoesOn) {
  clock_.Advance(absl::Seconds(29));
  EXPECT_TRUE(health_.Liveness().ok());
  clock_.Advance(absl::Seconds(2));
  ASSERT_FALSE(health_.Liveness().ok());
  EXPECT_THAT(health_.Liveness().reasons[0], testing::HasSubstr("the reactor loop has work"));
  // However often it was asked, it is asked once.
  EXPECT_EQ(reactor_.RunReady(), 1);
  EXPECT_TRUE(health_.Liveness().ok());
}

TEST_F(ReactorPulseTest, OneThatHasGoneIsNotLookedAt) {
  pulse_->Detach();
  EXPECT_EQ(reactor_.RunReady(), 1);
  EXPECT_TRUE(health_.Liveness().ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(health_.Liveness().ok());
  EXPECT_EQ(reactor_.RunReady(), 0);
}

}  // namespace
}  // namespace moebius
