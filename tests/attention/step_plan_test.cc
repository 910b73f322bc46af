// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/step_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

StepPlan TwoSessions() {
  return {.sessions = {{.session = SessionId(4), .row_begin = 0, .num_rows = 3, .prompt_length = 3},
                       {.session = SessionId(2),
                        .row_begin = 3,
                        .num_rows = 1,
                        .position_begin = 9,
                        .prompt_length = 5}},
          .num_rows = 4};
}

TEST(StepPlanTest, AcceptsRowsThatTileTheStep) {
  EXPECT_TRUE(ValidateStepPlan(TwoSessions()).ok());
  EXPECT_TRUE(ValidateStepPlan({}).ok());
}

TEST(StepPlanTest, KnowsWhereAPromptIsNotWhole) {
  const auto check = [](int64_t begin, int64_t num_rows) {
    return CheckWholePrompts({.sessions = {{.session = SessionId(1),
                                            .num_rows = num_rows,
                                            .position_begin = begin,
                                            .prompt_length = 20}},
                              .num_rows = num_rows})
        .ok();
  };
  EXPECT_TRUE(check(0, 0));
  EXPECT_TRUE(check(0, 20));
  EXPECT_TRUE(check(0, 21));
  EXPECT_TRUE(check(20, 1));
  EXPECT_TRUE(check(25, 3));
  EXPECT_FALSE(check(0, 19));
  EXPECT_FALSE(check(1, 19));
  EXPECT_FALSE(check(19, 5));
}

TEST(StepPlanTest, NamesTheBrokenRule) {
  const auto refusal = [](const auto& change) {
    StepPlan plan = TwoSessions();
    change(plan);
    const absl::Status status = ValidateStepPlan(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](StepPlan& p) { p.sessions[1].row_begin = 2; }), HasSubstr("begin at 2"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.num_rows = 5; }), HasSubstr("hold 4 rows"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.num_rows = 3; }), HasSubstr("beyond the 3 rows"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.sessions[1].session = SessionId(4); }),
              HasSubstr("twice"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.sessions[0].position_begin = -1; }),
              HasSubstr("position -1"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.sessions[0].num_rows = -1; }), HasSubstr("-1"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.sessions[0].position_begin = int64_t{1} << 62; }),
              HasSubstr("outside"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.sessions[0].num_rows = int64_t{1} << 62; }),
              HasSubstr("beyond"));
}

}  // namespace
}  // namespace moebius
