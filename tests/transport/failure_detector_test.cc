// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/failure_detector.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr absl::Duration kTick = absl::Nanoseconds(1);

absl::Duration Ms(int64_t ms) { return absl::Milliseconds(ms); }

TEST(FailureDetectorTest, SuspectsAfterThreeBeatsAndBuriesAfterASecond) {
  FailureDetector detector({}, Ms(100));
  EXPECT_EQ(detector.next_check(), Ms(550));
  EXPECT_EQ(detector.Check(Ms(550) - kTick), PeerState::kConnected);
  EXPECT_EQ(detector.Check(Ms(550)), PeerState::kSuspect);
  EXPECT_FALSE(detector.reason().ok());
  EXPECT_EQ(detector.next_check(), Ms(1100));
  EXPECT_EQ(detector.Check(Ms(1100) - kTick), PeerState::kSuspect);
  EXPECT_EQ(detector.Check(Ms(1100)), PeerState::kDead);
  EXPECT_EQ(detector.next_check(), absl::InfiniteDuration());
}

TEST(FailureDetectorTest, AnythingHeardClearsSuspicionButNotDeath) {
  FailureDetector detector({}, Ms(0));
  EXPECT_EQ(detector.Check(Ms(500)), PeerState::kSuspect);
  detector.OnHeard(Ms(600));
  EXPECT_EQ(detector.state(), PeerState::kConnected);
  EXPECT_TRUE(detector.reason().ok());
  EXPECT_EQ(detector.Check(Ms(1049)), PeerState::kConnected);
  EXPECT_EQ(detector.Check(Ms(1050)), PeerState::kSuspect);
  EXPECT_EQ(detector.Check(Ms(1600)), PeerState::kDead);
  detector.OnHeard(Ms(1601));
  EXPECT_EQ(detector.Check(Ms(1601)), PeerState::kDead);
}

TEST(FailureDetectorTest, WhatWasHeardBeforeProvesNothingNew) {
  FailureDetector detector({}, Ms(0));
  detector.OnHeard(Ms(20));
  EXPECT_EQ(detector.Check(Ms(500)), PeerState::kSuspect);
  detector.OnHeard(Ms(20));
  EXPECT_EQ(detector.state(), PeerState::kSuspect);
}

TEST(FailureDetectorTest, AnEndedStreamIsDeadAtOnceWithItsReason) {
  FailureDetector detector({}, Ms(0));
  detector.OnStreamEnded(absl::UnavailableError("connection reset"));
  EXPECT_EQ(detector.Check(Ms(1)), PeerState::kDead);
  EXPECT_EQ(detector.reason().message(), "connection reset");
  detector.OnStreamEnded(absl::UnavailableError("again"));
  EXPECT_EQ(detector.reason().message(), "connection reset");
}

TEST(FailureDetectorTest, APeerThatSpeaksAndConsumesNothingIsDeadAfterFourSeconds) {
  FailureDetector detector({}, Ms(0));
  detector.OnLane(Lane::kBulk, true, 7, Ms(100));
  const auto speak_until = [&detector](int64_t begin_ms, int64_t end_ms) {
    for (int64_t ms = begin_ms; ms < end_ms; ms += 100) {
      detector.OnHeard(Ms(ms));
      detector.OnLane(Lane::kBulk, true, 7, Ms(ms));
      detector.OnLane(Lane::kDecode, ms % 200 == 0, ms, Ms(ms));
      ASSERT_EQ(detector.Check(Ms(ms)), PeerState::kConnected) << ms;
    }
  };
  speak_until(200, 4100);
  EXPECT_EQ(detector.Check(Ms(4100)), PeerState::kDead);
  EXPECT_EQ(detector.reason().message(), "it has taken nothing from the bulk lane for 4s");
}

TEST(FailureDetectorTest, ACreditOrALaneWithNothingUnderWayIsNoStall) {
  FailureDetector detector({}, Ms(0));
  uint64_t consumed = 0;
  for (int64_t ms = 100; ms < 20000; ms += 100) {
    detector.OnHeard(Ms(ms));
    if (ms % 3900 == 0) ++consumed;
    detector.OnLane(Lane::kBulk, true, consumed, Ms(ms));
    detector.OnLane(Lane::kControl, ms % 3900 != 0, 5, Ms(ms));
    ASSERT_EQ(detector.Check(Ms(ms)), PeerState::kConnected) << ms;
  }
}

TEST(FailureDetectorTest, AProcessThatStoodStillSawNoCredits) {
  FailureDetector detector({}, Ms(0));
  detector.OnHeard(Ms(100));
  detector.OnLane(Lane::kBulk, true, 1, Ms(100));
  EXPECT_EQ(detector.Check(Ms(100)), PeerState::kConnected);
  EXPECT_EQ(detector.Check(Ms(10000)), PeerState::kConnected);
  for (int64_t ms = 10000; ms < 14000; ms += 100) {
    detector.OnHeard(Ms(ms));
    ASSERT_EQ(detector.Check(Ms(ms)), PeerState::kConnected) << ms;
  }
  detector.OnHeard(Ms(14000));
  EXPECT_EQ(detector.Check(Ms(14000)), PeerState::kDead);
}

TEST(FailureDetectorTest, AProcessThatStoodStillJudgesNobody) {
  FailureDetector detector({}, Ms(0));
  EXPECT_EQ(detector.Check(Ms(150)), PeerState::kConnected);
  // Stopped for ten seconds: it could not hear, so the silence is its own.
  EXPECT_EQ(detector.Check(Ms(10150)), PeerState::kConnected);
  // From here on the peer has to speak.
  EXPECT_EQ(detector.Check(Ms(10450)), PeerState::kSuspect);
  EXPECT_EQ(detector.Check(Ms(11000)), PeerState::kDead);
}

}  // namespace
}  // namespace moebius
