// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/head_groups.h"

#include "gtest/gtest.h"

#include "moebius/attention/session_method.h"

namespace moebius {
namespace {

constexpr AttentionHeads kHeads{.query_heads = 16, .kv_heads = 1};

StepPlan PlanOf(int64_t num_rows, int32_t ulysses_ranks, int32_t first_rank = 0) {
  return {.sessions = {{.session = SessionId(1),
                        .num_rows = num_rows,
                        .prompt_length = num_rows,
                        .first_rank = first_rank,
                        .method = AttentionMethod::kUlysses,
                        .ulysses_ranks = ulysses_ranks}},
          .num_rows = num_rows};
}

TEST(HeadGroupsTest, EveryRankOfAGroupWithRowsTakesPart) {
  const SpanGeometry geometry(64, 64);
  // One span: rank 3 of four owns it, and its group of two has rank 2 beside it.
  const StepPlan plan = PlanOf(40, 2, 3);
  EXPECT_FALSE(TakesPart(plan, geometry, {0, 4}));
  EXPECT_FALSE(TakesPart(plan, geometry, {1, 4}));
  EXPECT_TRUE(TakesPart(plan, geometry, {2, 4}));
  EXPECT_TRUE(TakesPart(plan, geometry, {3, 4}));
  EXPECT_TRUE(HeadRowsOf(plan, geometry, {2, 4}).empty());
  ASSERT_EQ(HeadRowsOf(plan, geometry, {3, 4}).size(), 1u);
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(TakesPart(PlanOf(40, 4, 3), geometry, {rank, 4}));
    EXPECT_EQ(TakesPart(PlanOf(40, 1, 3), geometry, {rank, 4}), rank == 3);
  }
}

TEST(HeadGroupsTest, GeneratedRowsNeverGoByHeads) {
  StepPlan plan = PlanOf(40, 4);
  plan.sessions[0].prompt_length = 30;
  const auto rows = HeadRowsOf(plan, SpanGeometry(64, 64), {0, 4});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].num_rows, 30);
}

TEST(SessionMethodTest, AForcedMethodHoldsForEverySessionWithPromptRows) {
  StepPlan plan = PlanOf(100, 1);
  plan.sessions.push_back(
      {.session = SessionId(2), .num_rows = 1, .position_begin = 50, .prompt_length = 50});
  SetMethods({.forced = AttentionMethod::k2d, .heads = kHeads, .num_ranks = 6}, plan);
  EXPECT_EQ(plan.sessions[0].method, AttentionMethod::k2d);
  EXPECT_EQ(plan.sessions[0].ulysses_ranks, 2);
  EXPECT_EQ(plan.sessions[1].ulysses_ranks, 1);
  SetMethods({.forced = AttentionMethod::kUlysses, .heads = kHeads, .num_ranks = 6}, plan);
  EXPECT_EQ(plan.sessions[0].ulysses_ranks, 6);
  SetMethods({.forced = AttentionMethod::kUlysses, .heads = kHeads}, plan);
  EXPECT_EQ(plan.sessions[0].ulysses_ranks, 1);
}

TEST(SessionMethodTest, TheCostModelChoosesEachSession) {
  StepPlan plan = PlanOf(100, 1);
  plan.sessions[0].num_rows = 60000;
  plan.sessions[0].prompt_length = 60000;
  plan.sessions.push_back({.session = SessionId(2), .num_rows = 20, .prompt_length = 20});
  const MethodRule rule{.heads = kHeads,
                        .rates = {.flops = 1e12, .bandwidth = 1e12, .latency = 1e-6},
                        .num_ranks = 4};
  SetMethods(rule, plan);
  EXPECT_NE(plan.sessions[0].method, AttentionMethod::kLocal);
  // Too short to share: the span rule alone.
  EXPECT_EQ(plan.sessions[1].method, AttentionMethod::kRingPassKv);
  EXPECT_TRUE(ValidateStepPlan({.sessions = {plan.sessions[0]}, .num_rows = 60000}).ok());
}

TEST(SessionMethodTest, GroupsOfAStepHaveOneSize) {
  StepPlan plan = PlanOf(100, 2);
  plan.sessions.push_back({.session = SessionId(2),
                           .row_begin = 100,
                           .num_rows = 100,
                           .prompt_length = 100,
                           .method = AttentionMethod::kUlysses,
                           .ulysses_ranks = 4});
  plan.num_rows = 200;
  EXPECT_FALSE(ValidateStepPlan(plan).ok());
  plan.sessions[1].ulysses_ranks = 2;
  EXPECT_TRUE(ValidateStepPlan(plan).ok());
  plan.sessions[1].ulysses_ranks = 0;
  EXPECT_FALSE(ValidateStepPlan(plan).ok());
}

TEST(SessionMethodTest, RefusesWhatCannotBeForced) {
  const auto is_ok = [](AttentionMethod method, int32_t num_ranks) {
    return ValidateMethodRule({.forced = method, .num_ranks = num_ranks}).ok();
  };
  EXPECT_FALSE(is_ok(AttentionMethod::kLocal, 2));
  EXPECT_TRUE(is_ok(AttentionMethod::kLocal, 1));
  EXPECT_FALSE(is_ok(AttentionMethod::k2d, 3));
  EXPECT_TRUE(is_ok(AttentionMethod::k2d, 4));
  EXPECT_TRUE(is_ok(AttentionMethod::kUlysses, 3));
  EXPECT_EQ(GroupSizeOf2d(16), 4);
  EXPECT_EQ(GroupSizeOf2d(12), 3);
  EXPECT_EQ(GroupSizeOf2d(7), 1);
}

TEST(FirstRankTest, FollowsTheSessionSaveWhereTheSumFollowsTheRanksAndRowsMayGoByHeads) {
  MethodRule rule{.num_ranks = 3};
  for (const AttentionSum sum : {AttentionSum::kCanonical, AttentionSum::kPerDegree}) {
    rule.sum = sum;
    const int32_t with_heads = sum == AttentionSum::kCanonical ? 2 : 0;
    rule.forced = std::nullopt;
    EXPECT_EQ(FirstRankOf(rule, SessionId(5)), with_heads);
    rule.forced = AttentionMethod::kUlysses;
    EXPECT_EQ(FirstRankOf(rule, SessionId(5)), with_heads);
    rule.forced = AttentionMethod::kRingPassKv;
    EXPECT_EQ(FirstRankOf(rule, SessionId(5)), 2);
    rule.forced = AttentionMethod::kRingPassQ;
    EXPECT_EQ(FirstRankOf(rule, SessionId(~uint64_t{0})), 0);
  }
}

}  // namespace
}  // namespace moebius
