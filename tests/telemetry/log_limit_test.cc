// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log_limit.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

// How many of `lines` may be written, all at `now`.
int CountAllowed(LogLimit& limit, const LogSource& source, int lines, absl::Duration now) {
  int allowed = 0;
  uint64_t held_back = 0;
  for (int i = 0; i < lines; ++i) allowed += limit.Allows(source, now, &held_back) ? 1 : 0;
  return allowed;
}

TEST(LogLimitTest, APeerIsAHostWhateverItsPort) {
  EXPECT_EQ(PeerOfAddress("10.0.0.9:4711"), "10.0.0.9");
  EXPECT_EQ(PeerOfAddress("[::1]:4711"), "[::1]");
  EXPECT_EQ(PeerOfAddress("ipv4:10.0.0.9:4711"), "10.0.0.9");
  EXPECT_EQ(PeerOfAddress("ipv6:%5B::1%5D:4711"), "%5B::1%5D");
  EXPECT_EQ(PeerOfAddress("[::1]"), "[::1]");
  EXPECT_EQ(PeerOfAddress("unix:/run/x"), "unix:/run/x");
  EXPECT_EQ(PeerOfAddress("host:"), "host:");
  EXPECT_EQ(PeerOfAddress(""), "");
}

TEST(LogLimitTest, EveryPeerAndKindHasABudgetOfItsOwn) {
  LogLimit limit(LogLimits{});
  const absl::Duration now = absl::Hours(1);
  EXPECT_EQ(CountAllowed(limit, {"a", "refusal"}, 1000, now), 10);
  EXPECT_EQ(CountAllowed(limit, {"b", "refusal"}, 1000, now), 10);
  EXPECT_EQ(CountAllowed(limit, {"a", "stranger"}, 1000, now), 10);
  EXPECT_EQ(CountAllowed(limit, {"", "refusal"}, 1000, now), 10);
  EXPECT_EQ(CountAllowed(limit, {"a", "refusal"}, 1000, now + absl::Seconds(59)), 0);
  uint64_t held_back = 0;
  EXPECT_TRUE(limit.Allows({"a", "refusal"}, now + absl::Minutes(1), &held_back));
  EXPECT_EQ(held_back, 990u + 1000u);
}

TEST(LogLimitTest, ManyPeersShareWhatIsLeftAndTakeNothingFromOthers) {
  LogLimit limit(LogLimits{});
  const absl::Duration now = absl::Hours(1);
  int allowed = 0;
  for (int peer = 0; peer < 10'000; ++peer) {
    allowed += CountAllowed(limit, {absl::StrCat("10.0.0.", peer), "refusal"}, 20, now);
  }
  EXPECT_EQ(allowed, (128 + 1) * 10);
  EXPECT_EQ(CountAllowed(limit, {"", "the process's own"}, 20, now), 10);
}

TEST(LogLimitTest, MakesRoomForNewKindsWhenOldWindowsAreOver) {
  LogLimit limit(LogLimits{});
  absl::Duration now = absl::Hours(1);
  for (int kind = 0; kind < 10'000; ++kind) {
    CountAllowed(limit, {"", absl::StrCat("sentence ", kind)}, 20, now);
    CountAllowed(limit, {absl::StrCat("10.0.0.", kind), "refusal"}, 20, now);
  }
  EXPECT_EQ(CountAllowed(limit, {"", "something new"}, 20, now), 0) << "shares a budget";
  now += absl::Minutes(1);
  EXPECT_EQ(CountAllowed(limit, {"", "something new"}, 20, now), 10);
  EXPECT_EQ(CountAllowed(limit, {"", "something else"}, 20, now), 10);
  EXPECT_EQ(CountAllowed(limit, {"10.9.9.9", "refusal"}, 20, now), 10);
}

TEST(LogLimitTest, TellsOnceInAWindowWhatWasHeldBack) {
  LogLimit limit(LogLimits{});
  absl::Duration now = absl::Hours(1);
  EXPECT_EQ(limit.due(), absl::InfiniteDuration());
  CountAllowed(limit, {"a", "refusal"}, 15, now);
  CountAllowed(limit, {"b", "refusal"}, 30, now + absl::Seconds(30));
  CountAllowed(limit, {"", "garbage"}, 12, now + absl::Seconds(30));
  EXPECT_EQ(limit.due(), now + absl::Minutes(1));
  EXPECT_FALSE(limit.TakeHeldBack(now + absl::Seconds(59)).has_value());
  const auto told = limit.TakeHeldBack(now + absl::Minutes(1));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->lines, 5u + 20u + 2u);
  EXPECT_EQ(told->peers, 2u);
  EXPECT_EQ(told->most_of, "b");
  EXPECT_EQ(told->most_lines, 20u);
  EXPECT_FALSE(limit.TakeHeldBack(now + absl::Minutes(2)).has_value());
}

}  // namespace
}  // namespace moebius
