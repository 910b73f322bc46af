// SPDX-License-Identifier: Apache-2.0
// N ranks in lockstep give the bits of one rank, whatever N, chunks and company.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/local_ranks.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::ExpectADeadRankIsNamed;
using testing::FirstDifference;
using testing::LocalRanks;
using testing::MakeAttentionCase;
using testing::MakeTestSession;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;

class ShardedBitsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ShardedBitsTest, AreThoseOfOneRankForEveryNumberOfRanksAndChunking) {
  AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const int64_t width = model.facts.hidden_size;
  constexpr int64_t kLength = 590;  // ten spans, the last one open
  LocalRanks alone(model, 1);
  const RowBatch<Bf16> expected =
      RunAll(*alone.group, MakeTestSession(1, kLength, 500, width), {kLength});
  for (int32_t num_ranks = 2; num_ranks <= 8; ++num_ranks) {
    LocalRanks ranks(model, num_ranks);
    for (const int64_t chunk : {kLength, int64_t{130}, int64_t{64}}) {
      const RowBatch<Bf16> found =
          RunAll(*ranks.group, MakeTestSession(1, kLength, 500, width), {chunk});
      EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "")
          << num_ranks << " ranks, chunks of " << chunk;
    }
    int64_t received = 0;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const ShardFigures figures = ranks.group->rank(rank).shard_figures();
      EXPECT_LE(figures.max_foreign_spans, 4 * num_ranks - 4);
      received += figures.spans_received;
    }
    EXPECT_GT(received, 0);
  }
}

TEST_P(ShardedBitsTest, OfDecodeAreThoseOfOneRank) {
  AttentionCase model = MakeAttentionCase(GetParam(), 128);
  model.facts.key_block = 64;  // two blocks in a span
  const int64_t width = model.facts.hidden_size;
  LocalRanks alone(model, 1);
  const RowBatch<Bf16> expected = RunAll(*alone.group, MakeTestSession(2, 400, 380, width), {400});
  for (const int32_t num_ranks : {2, 3, 5}) {
    LocalRanks ranks(model, num_ranks);
    TestSession session = MakeTestSession(2, 400, 380, width);
    RunTestStep(*ranks.group, {&session}, {380});
    while (session.length < 400) RunTestStep(*ranks.group, {&session}, {1});
    EXPECT_EQ(FirstDifference(expected.rows(), session.out.rows()), "") << num_ranks << " ranks";
  }
}

// Every way to share a prompt's rows, for any number of ranks and groups, with and without keys
// that were there before the step; decode afterwards.
TEST_P(ShardedBitsTest, AreThoseOfOneRankForEveryMethod) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const int64_t width = model.facts.hidden_size;
  constexpr int64_t kLength = 590;
  LocalRanks alone(model, 1);
  const RowBatch<Bf16> expected =
      RunAll(*alone.group, MakeTestSession(1, kLength, 580, width), {kLength});
  for (const int32_t num_ranks : {3, 4, 16}) {  // some of 16 have no head
    LocalRanks ranks(model, num_ranks);
    for (const AttentionMethod method : kAttentionMethods) {
      if (method == AttentionMethod::kLocal) continue;
      for (int32_t parts = 1; parts <= num_ranks; ++parts) {
        const bool is_group = method == AttentionMethod::k2d        ? parts > 1 && parts < num_ranks
                              : method == AttentionMethod::kUlysses ? parts == num_ranks
                                                                    : parts == 1;
        if (num_ranks % parts != 0 || !is_group) continue;
        for (const int64_t chunk : {kLength, int64_t{130}}) {
          TestSession session = MakeTestSession(1, kLength, 580, width);
          session.method = method;
          session.ulysses_ranks = parts;
          const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(session), {chunk});
          EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "")
              << AttentionMethodName(method) << ", " << num_ranks << " ranks in groups of " << parts
              << ", chunks of " << chunk;
        }
      }
    }
  }
}

// One session by heads, one whose keys come, one whose queries go, and one that is too short to be
// shared, in the same step.
TEST_P(ShardedBitsTest, DoNotDependOnTheMethodsOfOthers) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const int64_t width = model.facts.hidden_size;
  const auto make = [&] {
    std::vector<TestSession> sessions;
    for (const auto& [method, length] :
         std::vector<std::pair<AttentionMethod, int64_t>>{{AttentionMethod::kUlysses, 300},
                                                          {AttentionMethod::kRingPassKv, 290},
                                                          {AttentionMethod::kRingPassQ, 200},
                                                          {AttentionMethod::kUlysses, 40},
                                                          {AttentionMethod::kAllGather, 130},
                                                          {AttentionMethod::kUlysses, 129}}) {
      sessions.push_back(MakeTestSession(sessions.size() + 1, length, length - 1, width));
      sessions.back().method = method;
      sessions.back().ulysses_ranks = method == AttentionMethod::kUlysses ? 4 : 1;
    }
    return sessions;
  };
  LocalRanks alone(model, 1);
  std::vector<RowBatch<Bf16>> expected;
  for (TestSession& session : make()) {
    session.ulysses_ranks = 1;
    expected.push_back(RunAll(*alone.group, std::move(session), {1000}));
  }
  LocalRanks ranks(model, 4);
  std::vector<TestSession> sessions = make();
  std::vector<TestSession*> pointers;
  for (TestSession& session : sessions) pointers.push_back(&session);
  for (const int64_t chunk : {100, 1, 300}) {
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), chunk));
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_EQ(FirstDifference(expected[i].rows(), sessions[i].out.rows()), "") << "session " << i;
  }
}

// Lengths around a span's end, nothing at all, several roles and first ranks in one step.
TEST_P(ShardedBitsTest, DoNotDependOnTheCompanyInAStep) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const int64_t width = model.facts.hidden_size;
  const int64_t shapes[][3] = {// rows, prompt length, rows of the first step
                               {300, 290, 150}, {0, 0, 0},      {1, 1, 1},    {63, 63, 63},
                               {64, 40, 64},    {65, 64, 64},   {250, 20, 9}, {20, 20, 20},
                               {129, 129, 128}, {200, 199, 199}};
  const auto make = [&] {
    std::vector<TestSession> sessions;
    for (const auto& [length, prompt, first] : shapes) {
      sessions.push_back(MakeTestSession(sessions.size(), length, prompt, width));
    }
    return sessions;
  };
  LocalRanks alone(model, 1);
  std::vector<RowBatch<Bf16>> expected;
  for (TestSession& session : make()) {
    const int64_t chunk = std::max<int64_t>(1, session.rows.num_rows());
    expected.push_back(RunAll(*alone.group, std::move(session), {chunk}));
  }
  for (const int32_t num_ranks : {1, 2, 3, 4, 7}) {
    LocalRanks ranks(model, num_ranks);
    std::vector<TestSession> sessions = make();
    std::vector<TestSession*> pointers;
    std::vector<int64_t> chunks;
    for (size_t i = 0; i < sessions.size(); ++i) {
      pointers.push_back(&sessions[i]);
      chunks.push_back(shapes[i][2]);
    }
    RunTestStep(*ranks.group, pointers, chunks);
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), 1));
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), 300));
    for (size_t i = 0; i < sessions.size(); ++i) {
      EXPECT_EQ(FirstDifference(expected[i].rows(), sessions[i].out.rows()), "")
          << num_ranks << " ranks, session " << i;
    }
  }
}

TEST_P(ShardedBitsTest, OfARepeatedAttemptAreThoseOfTheFirst) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const int64_t width = model.facts.hidden_size;
  LocalRanks alone(model, 1);
  const RowBatch<Bf16> expected = RunAll(*alone.group, MakeTestSession(1, 300, 280, width), {300});
  LocalRanks ranks(model, 3);
  TestSession session = MakeTestSession(1, 300, 280, width);
  RunTestStep(*ranks.group, {&session}, {100});
  // An attempt that one rank could not finish: noise, thrown away.
  StepPlan plan{.step = 1000000,
                .sessions = {{.session = session.id,
                              .num_rows = 200,
                              .position_begin = 100,
                              .prompt_length = 280,
                              .first_rank = session.first_rank}},
                .num_rows = 200};
  const RowBatch<Bf16> noise = testing::MakeRows(5, 200, width, 50.0f);
  RowBatch<Bf16> out(200, width);
  std::vector<absl::Status> statuses = ranks.group->RunStep(plan, noise.rows(), out.rows(), 3);
  EXPECT_FALSE(statuses[0].ok() && statuses[1].ok() && statuses[2].ok());  // no third layer
  RunTestStep(*ranks.group, {&session}, {200});
  EXPECT_EQ(FirstDifference(expected.rows(), session.out.rows()), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, ShardedBitsTest, ::testing::ValuesIn(testing::AttentionCaseNames()),
                         [](const auto& info) { return info.param; });

TEST(ShardedAccountingTest, ARankKeepsOnlyItsSpansAndRefusesWhatPassesThem) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  LocalRanks ranks(model, 2, 128);  // two blocks each
  TestSession session = MakeTestSession(2, 300, 300, model.facts.hidden_size);
  RunTestStep(*ranks.group, {&session}, {200});  // spans 0, 3 at rank 0; 1, 2 at rank 1
  EXPECT_EQ(ranks.group->rank(0).usage().used_blocks, 2);
  EXPECT_EQ(ranks.group->rank(1).usage().used_blocks, 2);
  EXPECT_EQ(ranks.group->rank(1).SessionLength(session.id), 200);
  const StepPlan plan{.step = 2000000,
                      .sessions = {{.session = session.id,
                                    .num_rows = 100,
                                    .position_begin = 200,
                                    .prompt_length = 300,
                                    .first_rank = 2}},
                      .num_rows = 100};
  RowBatch<Bf16> rows(100, model.facts.hidden_size);
  const auto statuses = ranks.group->RunStep(plan, rows.rows(), rows.rows());
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kResourceExhausted);
  // The other one asks a rank that refused the step, and hears why.
  EXPECT_TRUE(statuses[1].ok() || statuses[1] == statuses[0]) << statuses[1];
  EXPECT_EQ(ranks.group->rank(1).usage().used_blocks, 2);
  ranks.group->EndSession(session.id);
  EXPECT_EQ(ranks.group->rank(0).usage().used_blocks, 0);
  EXPECT_EQ(ranks.group->rank(1).usage().num_sessions, 0);
}

TEST(ShardedAccountingTest, ARankWithoutSpansOfASessionNeedsNoneOfItsPast) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  LocalRanks ranks(model, 3);
  AttentionPipeline& third = ranks.group->rank(2);
  // Spans 0 and 1 are of ranks 0 and 1; the third never heard of this session.
  const StepPlan plan{.step = 7,
                      .sessions = {{.session = SessionId(9),
                                    .num_rows = 10,
                                    .position_begin = 128,
                                    .prompt_length = 200}},
                      .num_rows = 10};
  EXPECT_TRUE(third.BeginStep(plan).ok());
  EXPECT_EQ(third.num_own_rows(), 10);
  third.AbortStep();
  // A rank that owned something in between must have it.
  EXPECT_EQ(ranks.group->rank(1).BeginStep(plan).code(), absl::StatusCode::kFailedPrecondition);
  StepPlan turned = plan;
  turned.sessions[0].first_rank = 1;  // its second span
  EXPECT_EQ(third.BeginStep(turned).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ShardedFiguresTest, CountWhatTheRuleSays) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  const int64_t heads = model.facts.config.num_query_heads;
  for (const int32_t num_ranks : {2, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    TestSession session = MakeTestSession(0, 590, 589, model.facts.hidden_size);
    RunTestStep(*ranks.group, {&session}, {589});
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      // Prompt rows ask for every foreign span before their own last one, once.
      int64_t last_own = -1;
      for (int64_t span = 0; span < 10; ++span) {
        if (SpanOwner(span, 0, num_ranks) == rank) last_own = span;
      }
      int64_t expected = 0;
      for (int64_t span = 0; span < last_own; ++span) {
        if (SpanOwner(span, 0, num_ranks) != rank) ++expected;
      }
      EXPECT_EQ(ranks.group->rank(rank).shard_figures().spans_received, expected);
    }
    RunTestStep(*ranks.group, {&session}, {1});
    const int32_t owner = SpanOwner(9, 0, num_ranks);
    const int64_t own_before = NumOwnedSpans({0, 9}, 0, {owner, num_ranks});
    EXPECT_EQ(ranks.group->rank(owner).shard_figures().states_received, heads * (9 - own_before));
  }
}

TEST(ShardedFailureTest, AWaitForADeadRankFailsTheStepAndNamesIt) {
  ExpectADeadRankIsNamed(MakeAttentionCase("mla", 64));
}

}  // namespace
}  // namespace moebius
