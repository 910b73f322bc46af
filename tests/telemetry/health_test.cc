// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/health.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HealthTest : public testing::Test {
 protected:
  void Watch(Health::WaitsFor waits_for = Health::WaitsFor::kNobody) {
    health_.WatchLoop(
        "step", [this] { return progress_; }, waits_for);
  }

  FakeClock clock_;
  Health health_{clock_};
  LoopProgress progress_;
};

TEST_F(HealthTest, SaysWhatItIsBusyWithUntilItHasStarted) {
  health_.SetStarting("loading weights: 1.2 of 8.0 GB");
  EXPECT_THAT(health_.Startup().reasons, ElementsAre("loading weights: 1.2 of 8.0 GB"));
  EXPECT_THAT(health_.Readiness().reasons, ElementsAre("loading weights: 1.2 of 8.0 GB"));
  EXPECT_TRUE(health_.Liveness().ok());
  health_.SetStarted();
  EXPECT_TRUE(health_.Startup().ok());
  EXPECT_TRUE(health_.Readiness().ok());
}

TEST_F(HealthTest, IsReadyWhenNoCheckMissesAnything) {
  std::vector<std::string> missing = {"expert-1 is not there", "expert-3 loads"};
  health_.AddReadinessCheck([&] { return missing; });
  health_.SetStarted();
  EXPECT_THAT(health_.Readiness().reasons, ElementsAre("expert-1 is not there", "expert-3 loads"));
  EXPECT_TRUE(health_.Liveness().ok());
  missing.clear();
  EXPECT_TRUE(health_.Readiness().ok());
}

TEST_F(HealthTest, IsNotReadyAgainAfterDraining) {
  health_.SetStarted();
  health_.SetDraining();
  EXPECT_THAT(health_.Readiness().reasons, ElementsAre(HasSubstr("draining")));
  EXPECT_TRUE(health_.Liveness().ok());
}

TEST_F(HealthTest, ALoopThatWaitsForOthersMakesItUnreadyAndNeverDead) {
  health_.SetStarted();
  Watch(Health::WaitsFor::kOthers);
  progress_ = {7, true};
  EXPECT_TRUE(health_.Readiness().ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(health_.Readiness().reasons, ElementsAre(HasSubstr("the step loop")));
  EXPECT_TRUE(health_.Liveness().ok());
  progress_ = {8, true};
  EXPECT_TRUE(health_.Readiness().ok());
  progress_ = {8, false};
  EXPECT_TRUE(health_.Readiness().ok());
  clock_.Advance(absl::Seconds(300));
  EXPECT_TRUE(health_.Readiness().ok());
}

TEST_F(HealthTest, FindsALoopThatStandsStillWithWorkPending) {
  health_.SetStarted();
  Watch();
  progress_ = {7, true};
  EXPECT_TRUE(health_.Liveness().ok());
  clock_.Advance(absl::Seconds(29));
  EXPECT_TRUE(health_.Liveness().ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(health_.Liveness().reasons,
              ElementsAre("the step loop has work and made no progress for 30 s"));
  EXPECT_FALSE(health_.Readiness().ok());
  progress_.count = 8;
  EXPECT_TRUE(health_.Liveness().ok());
}

TEST_F(HealthTest, DoesNotTakeAnIdleLoopForAStuckOne) {
  Watch();
  progress_ = {7, false};
  for (int minute = 0; minute < 5; ++minute) {
    clock_.Advance(absl::Minutes(1));
    EXPECT_TRUE(health_.Liveness().ok());
  }
  // Work has just come: the time before it does not count.
  progress_.pending = true;
  clock_.Advance(absl::Seconds(40));
  EXPECT_TRUE(health_.Liveness().ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_FALSE(health_.Liveness().ok());
}

TEST_F(HealthTest, ShowsWhenEachLoopLastProgressed) {
  Watch();
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { health_.WriteMetrics(writer); });
  EXPECT_THAT(registry.Scrape(),
              HasSubstr("moebius_background_loop_last_success_timestamp_seconds{loop=\"step\"}"));
}

TEST_F(HealthTest, ShowsWhetherItIsReadyAsItsProbeSays) {
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { health_.WriteMetrics(writer); });
  const auto shown = [&] { return registry.Scrape(); };
  EXPECT_THAT(shown(), HasSubstr("\nmoebius_ready 0\n"));
  health_.SetStarted();
  EXPECT_THAT(shown(), HasSubstr("\nmoebius_ready 1\n"));
  std::vector<std::string> missing = {"expert slot 1"};
  health_.AddReadinessCheck([&] { return missing; });
  EXPECT_THAT(shown(), HasSubstr("\nmoebius_ready 0\n"));
  missing.clear();
  EXPECT_THAT(shown(), HasSubstr("\nmoebius_ready 1\n"));
  health_.SetDraining();
  EXPECT_THAT(shown(), HasSubstr("\nmoebius_ready 0\n"));
}

}  // namespace
}  // namespace moebius
