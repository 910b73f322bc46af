// SPDX-License-Identifier: Apache-2.0
#include "node/restart_policy.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;

TEST(RestartPolicyTest, WaitsTwiceAsLongEachTimeUpToTheCapAndThenGivesUp) {
  RestartOptions options;
  options.first_delay = absl::Milliseconds(500);
  options.max_delay = absl::Seconds(3);
  options.max_restarts = 5;
  RestartPolicy policy(options);
  std::vector<absl::Duration> delays;
  absl::Duration now = absl::Seconds(100);
  policy.OnStart(now);
  while (const std::optional<absl::Duration> delay = policy.OnEnd(now)) {
    delays.push_back(*delay);
    EXPECT_EQ(policy.num_restarts(), static_cast<int>(delays.size()));
    now += *delay;
    policy.OnStart(now);
  }
  EXPECT_THAT(delays, ElementsAre(absl::Milliseconds(500), absl::Seconds(1), absl::Seconds(2),
                                  absl::Seconds(3), absl::Seconds(3)));
}

TEST(RestartPolicyTest, WhoWasUpForLongStartsAnew) {
  RestartOptions options;
  RestartPolicy policy(options);
  policy.OnStart(absl::ZeroDuration());
  EXPECT_EQ(policy.OnEnd(absl::Seconds(1)), options.first_delay);
  policy.OnStart(absl::Seconds(2));
  EXPECT_EQ(policy.OnEnd(absl::Seconds(3)), 2 * options.first_delay);
  policy.OnStart(absl::Seconds(4));
  EXPECT_EQ(policy.OnEnd(absl::Seconds(4) + options.settled_after), options.first_delay);
  EXPECT_EQ(policy.num_restarts(), 1);
}

TEST(RestartPolicyTest, ManyRestartsNeverPassTheCap) {
  RestartOptions options;
  options.max_restarts = 1000;
  RestartPolicy policy(options);
  for (int i = 0; i < options.max_restarts; ++i) {
    policy.OnStart(absl::ZeroDuration());
    EXPECT_LE(policy.OnEnd(absl::ZeroDuration()), options.max_delay);
  }
  EXPECT_EQ(policy.OnEnd(absl::ZeroDuration()), std::nullopt);
}

}  // namespace
}  // namespace moebius
