// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/step_codec.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

StepPlan SamplePlan() {
  StepPlan plan;
  plan.term = 3;
  plan.step = 1000;
  plan.attempt = 2;
  plan.num_rows = 9;
  plan.sessions = {
      {SessionId(5), 0, 8, 100, 120, 2}, {SessionId(6), 8, 0, 0, 4}, {SessionId(7), 8, 1, 33, 30}};
  return plan;
}

TEST(StepCodecTest, BringsThePlan) {
  const auto message = BuildStepPlan(SamplePlan());
  ASSERT_TRUE(message.ok());
  StepPlan plan = SamplePlan();
  plan.sessions.resize(7);  // what was there before goes
  const absl::Status parsed = ParseStepPlan(*message, &plan);
  ASSERT_TRUE(parsed.ok()) << parsed;
  EXPECT_EQ(plan.term, 3u);
  EXPECT_EQ(plan.step, 1000u);
  EXPECT_EQ(plan.attempt, 2u);
  EXPECT_EQ(plan.num_rows, 9);
  ASSERT_EQ(plan.sessions.size(), 3u);
  EXPECT_EQ(plan.sessions[2].session, SessionId(7));
  EXPECT_EQ(plan.sessions[2].row_begin, 8);
  EXPECT_EQ(plan.sessions[0].position_begin, 100);
  EXPECT_EQ(plan.sessions[0].prompt_length, 120);
  EXPECT_EQ(plan.sessions[0].first_rank, 2);
  EXPECT_EQ(plan.sessions[2].first_rank, 0);
}

TEST(StepCodecTest, RefusesHostilePlans) {
  StepPlan parsed;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  struct Case {
    const char* name;
    int64_t num_rows, position, prompt;
  };
  for (const Case& hostile : std::vector<Case>{{"rows -1", -1, 0, 0},
                                               {"rows near 2^63", kMax, 0, 0},
                                               {"position -1", 1, -1, 0},
                                               {"position near 2^63", 1, kMax, 0},
                                               {"prompt -1", 1, 0, -1}}) {
    StepPlan plan = SamplePlan();
    plan.sessions[0].num_rows = hostile.num_rows;
    plan.sessions[0].position_begin = hostile.position;
    plan.sessions[0].prompt_length = hostile.prompt;
    EXPECT_EQ(ParseStepPlan(*BuildStepPlan(plan), &parsed).code(),
              absl::StatusCode::kInvalidArgument)
        << hostile.name;
  }
  StepPlan twice = SamplePlan();
  twice.sessions[2].session = SessionId(5);
  EXPECT_FALSE(ParseStepPlan(*BuildStepPlan(twice), &parsed).ok());
  for (const uint32_t count : {2u, 4u, 4097u, 0xffffffffu}) {
    Message message = *BuildStepPlan(SamplePlan());
    ByteWriter out;
    out.Write(count);
    out.WriteArray(message.metadata.span().subspan(4));
    message.metadata = out.Share();
    EXPECT_FALSE(ParseStepPlan(message, &parsed).ok()) << count;
  }
  StepPlan late = SamplePlan();
  late.attempt = uint64_t{1} << 32;
  EXPECT_FALSE(BuildStepPlan(late).ok());
}

TEST(StepCodecTest, BringsAnswersAndEnds) {
  const MessageKey key{kStepReadyKind, 1000, 2};
  EXPECT_TRUE(ParseStepAnswer(BuildStepAnswer(key, 3, absl::OkStatus())).ok());
  const absl::Status full = absl::ResourceExhaustedError("KV: 9 blocks needed, 4 free");
  EXPECT_EQ(ParseStepAnswer(BuildStepAnswer(key, 3, full)).code(), full.code());
  EXPECT_EQ(ParseStepAnswer(BuildStepAnswer(key, 3, full)).message(), full.message());
  for (const StepEnd end : {StepEnd::kCommit, StepEnd::kAbort}) {
    EXPECT_EQ(*ParseStepEnd(BuildStepEnd(SamplePlan(), end)), end);
  }
  EXPECT_EQ(*ParseSessionEnd(BuildSessionEnd(3, SessionId(77))), SessionId(77));
  // An empty message is no answer, no end and no session.
  Message empty;
  EXPECT_FALSE(ParseStepAnswer(empty).ok());
  EXPECT_FALSE(ParseStepEnd(empty).ok());
  EXPECT_FALSE(ParseSessionEnd(empty).ok());
}

}  // namespace
}  // namespace moebius
