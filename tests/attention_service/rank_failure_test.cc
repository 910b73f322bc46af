// SPDX-License-Identifier: Apache-2.0
// What becomes of a step, its sessions and those who wait when a rank or the router dies.
#include <algorithm>
#include <atomic>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "moebius/wire/step_codec.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/rank_steps.h"
#include "tests/attention_service/rank_world.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::FirstDifference;
using ::testing::HasSubstr;
using testing::kLength;
using testing::kPrompt;
using testing::kSession;
using testing::MakeAttentionCase;
using testing::MakeRows;
using testing::PlanOf;
using testing::RankWorld;
using testing::RunAlone;
using testing::RunInSteps;
using testing::RunStep;

constexpr absl::Duration kPromise = absl::Milliseconds(500);

/// A method, and the sum by its name or the per-degree one by its layout's.
using FailureCase = std::tuple<AttentionMethod, std::string>;

class AttentionMethodFailureTest : public ::testing::TestWithParam<FailureCase> {
 protected:
  AttentionCase MakeModel(const std::string& name) const {
    AttentionCase model = MakeAttentionCase(name, 64);
    if (is_canonical()) return model;
    model.facts.sum = AttentionSum::kPerDegree;
    model.facts.layout = *ParseAttentionLayout(std::get<std::string>(GetParam()));
    return model;
  }
  // What nothing has disturbed, in the same steps.
  RowBatch<Bf16> ExpectedOf(const AttentionCase& model, Bf16Rows rows) const {
    if (is_canonical()) return RunAlone(model, rows);
    RankWorld world(model, num_ranks(), method());
    return RunInSteps(world.port(), rows, {300, kPrompt, kLength});
  }
  bool is_canonical() const { return std::get<std::string>(GetParam()) == "canonical"; }
  AttentionMethod method() const { return std::get<AttentionMethod>(GetParam()); }
  int32_t num_ranks() const { return method() == AttentionMethod::k2d ? 4 : 3; }
};

TEST_P(AttentionMethodFailureTest, ARankThatDiesFailsTheStepAndItsSessionsStartAgain) {
  const AttentionCase model = MakeModel("gqa");
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  const RowBatch<Bf16> expected = ExpectedOf(model, rows.rows());
  RankWorld world(model, num_ranks(), method());
  RowBatch<Bf16> out(kLength, model.facts.hidden_size);
  ASSERT_TRUE(RunStep(world.port(), rows.rows(), 0, 300, out.rows()).ok());
  // Between two layers.
  ASSERT_TRUE(world.port().BeginStep(PlanOf(300, kPrompt)).ok());
  ASSERT_TRUE(
      world.port()
          .RunLayer(LayerId(0), rows.rows().Slice(300, kPrompt), out.rows().Slice(300, kPrompt))
          .ok());
  world.Kill(1);
  const absl::Duration begin = Clock::Monotonic().Now();
  const absl::Status status = world.port().RunLayer(LayerId(1), rows.rows().Slice(300, kPrompt),
                                                    out.rows().Slice(300, kPrompt));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attention rank 1"));
  // Of a machine under load; peer_death_test.cc has the promise by a clock of its own.
  EXPECT_LT(Clock::Monotonic().Now() - begin, 5 * kPromise);
  world.port().AbortStep();
  // Another rank may have told of it before the router's own link did.
  EXPECT_TRUE(
      RankWorld::Until([&] { return !world.port().WaitUntilUsable(absl::ZeroDuration()); }));
  EXPECT_THAT(std::string(world.port().BeginStep(PlanOf(300, kPrompt)).message()),
              HasSubstr("attention rank 1 is missing"));
  EXPECT_THAT(world.port().TakeLostSessions(), ::testing::ElementsAre(kSession));
  EXPECT_THAT(world.port().TakeLostSessions(), ::testing::IsEmpty());
  world.Start(1);
  ASSERT_TRUE(world.AllConnected());
  EXPECT_TRUE(world.port().WaitUntilUsable(absl::Seconds(10)));
  const RowBatch<Bf16> again = RunInSteps(world.port(), rows.rows(), {300, kPrompt, kLength});
  EXPECT_EQ(FirstDifference(expected.rows(), again.rows()), "");
}

class AttentionMethodSilenceTest : public AttentionMethodFailureTest {};

// Rank 1's answers stay in its links; it dies while others wait for them.
TEST_P(AttentionMethodSilenceTest, ARankThatDiesInTheMiddleOfARoundHangsNobody) {
  const AttentionCase model = MakeModel("mla");
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  RankWorld world(model, num_ranks(), method());
  RowBatch<Bf16> out(kLength, model.facts.hidden_size);
  ASSERT_TRUE(RunStep(world.port(), rows.rows(), 0, 130, out.rows()).ok());
  world.faults(1).Set({.stop = true});
  const absl::Duration begin = Clock::Monotonic().Now();
  // Killed by silence: dead after one second.
  const absl::Status status = RunStep(world.port(), rows.rows(), 130, kPrompt, out.rows());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attention rank"));
  EXPECT_LT(Clock::Monotonic().Now() - begin, absl::Seconds(5));
  // The others are free again.
  EXPECT_TRUE(RankWorld::Until([&] {
    return world.rank(0).rank().figures().exchange.parked == 0 &&
           world.rank(2).rank().figures().exchange.parked == 0;
  }));
}

constexpr AttentionMethod kMethods[] = {AttentionMethod::kAllGather, AttentionMethod::kRingPassKv,
                                        AttentionMethod::kRingPassQ, AttentionMethod::kUlysses,
                                        AttentionMethod::k2d};

std::string NameOf(const ::testing::TestParamInfo<FailureCase>& info) {
  std::string name = absl::StrCat(AttentionMethodName(std::get<AttentionMethod>(info.param)), "_",
                                  std::get<std::string>(info.param));
  name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
  return name;
}

INSTANTIATE_TEST_SUITE_P(Methods, AttentionMethodFailureTest,
                         ::testing::Combine(::testing::ValuesIn(kMethods),
                                            ::testing::Values("canonical", "zigzag", "contiguous",
                                                              "striped")),
                         NameOf);
// Each takes a second; a layout changes nothing of what is waited for.
INSTANTIATE_TEST_SUITE_P(Methods, AttentionMethodSilenceTest,
                         ::testing::Combine(::testing::ValuesIn(kMethods),
                                            ::testing::Values("canonical", "zigzag")),
                         NameOf);

TEST(AttentionRankFailureTest, TheRoutersDeathFreesItsSessions) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  RankWorld world(model, 2);
  RunInSteps(world.port(), rows.rows(), {100, kPrompt});
  EXPECT_GT(world.rank(0).rank().figures().kv.used_blocks, 0);
  world.KillRouter();
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(RankWorld::Until([&] {
      const KvUsage usage = world.rank(rank).rank().figures().kv;
      return usage.used_blocks == 0 && usage.num_sessions == 0;
    })) << rank;
  }
}

// The owner of the row waits for a layer of the other rank, whose rows never come.
TEST(AttentionRankFailureTest, AnAbortEndsAWaitForAnotherRankAtOnce) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  RankWorld world(model, 2);
  StepPlan plan = PlanOf(0, 100);  // spans 0 and 1, of ranks 0 and 1
  const auto message = BuildStepPlan(plan);
  ASSERT_TRUE(message.ok());
  const PeerId first = *world.directory().AttentionPeer(0);
  const PeerId second = *world.directory().AttentionPeer(1);
  std::atomic<int> replies{0};
  ReservationSpec spec;
  spec.source = second;
  spec.key = {.kind = kAttentionReplyKind, .step = plan.step};
  spec.max_message_bytes = 1 << 20;
  spec.on_delivery = [&](const Delivery& delivery) {
    ASSERT_TRUE(delivery.message.ok());
    EXPECT_FALSE(ParseReply(*delivery.message, 36, 64).ok());
    ++replies;
  };
  ASSERT_TRUE(world.router().Reserve(spec).ok());
  ASSERT_TRUE(world.router().Send(first, Lane::kControl, *message).ok());
  ASSERT_TRUE(world.router().Send(second, Lane::kControl, *message).ok());
  const RowBatch<Bf16> rows = MakeRows(4, 36, 64);
  Message layer;
  layer.key = {.kind = kAttentionRowsKind, .step = plan.step};
  SetRows(layer, CopyRows(rows.rows()), 36, 64);
  ASSERT_TRUE(world.router().Send(second, Lane::kBulk, layer).ok());
  ASSERT_TRUE(RankWorld::Until([&] {  // its question waits at the other rank
    return world.rank(0).rank().figures().exchange.parked == 1;
  }));
  EXPECT_EQ(replies, 0);
  const Message abort = BuildStepEnd(plan, StepEnd::kAbort);
  ASSERT_TRUE(world.router().Send(second, Lane::kControl, abort).ok());
  EXPECT_TRUE(RankWorld::Until([&] { return replies == 1; }));
  ASSERT_TRUE(world.router().Send(first, Lane::kControl, abort).ok());
  EXPECT_TRUE(
      RankWorld::Until([&] { return world.rank(0).rank().figures().exchange.parked == 0; }));
}

// Rank 1 has the prompt's first rows; what it asks of keys of the same step behind them waits at
// rank 0 until these are there, for keys and for states alike.
TEST(AttentionRankFailureTest, NothingOfAPromptThatIsSeenWholeIsAnsweredAheadOfTheLayer) {
  AttentionCase model = MakeAttentionCase("gqa", 64);
  model.facts.config.is_causal = false;
  for (const AttentionMethod method : {AttentionMethod::kRingPassQ, AttentionMethod::kRingPassKv}) {
    RankWorld world(model, 2);
    StepPlan plan = PlanOf(0, 100);
    plan.sessions[0].prompt_length = 100;
    plan.sessions[0].method = method;
    plan.sessions[0].first_rank = 1;  // span 0 is of rank 1, span 1 of rank 0
    const auto message = BuildStepPlan(plan);
    ASSERT_TRUE(message.ok());
    const PeerId peers[] = {*world.directory().AttentionPeer(0),
                            *world.directory().AttentionPeer(1)};
    const RowBatch<Bf16> rows = MakeRows(4, 100, 64);
    const RowBatch<Bf16> expected = [&] {
      Executor executor(1);
      const auto pipeline = MakePipeline(model, BestKernels(), executor);
      return testing::RunStep(*pipeline, kSession, rows.rows(), 0, 100, 100);
    }();
    RowBatch<Bf16> out(100, 64);
    std::atomic<int> replies{0};
    for (const int rank : {0, 1}) {
      ReservationSpec spec;
      spec.source = peers[rank];
      spec.key = {.kind = kAttentionReplyKind, .step = plan.step};
      spec.max_message_bytes = 1 << 20;
      spec.on_delivery = [&, rank](const Delivery& delivery) {
        const int64_t begin = rank == 1 ? 0 : 64;
        const int64_t num_rows = rank == 1 ? 64 : 36;
        ASSERT_TRUE(delivery.message.ok());
        const auto reply = ParseReply(*delivery.message, num_rows, 64);
        ASSERT_TRUE(reply.ok()) << reply.status();
        for (int64_t r = 0; r < num_rows; ++r) {
          std::copy_n(reply->rows.row(r), 64, out.rows().row(begin + r));
        }
        ++replies;
      };
      ASSERT_TRUE(world.router().Reserve(spec).ok());
      ASSERT_TRUE(world.router().Send(peers[rank], Lane::kControl, *message).ok());
    }
    const auto send = [&](int rank, int64_t begin, int64_t end) {
      Message layer;
      layer.key = {.kind = kAttentionRowsKind, .step = plan.step};
      SetRows(layer, CopyRows(rows.rows().Slice(begin, end)), end - begin, 64);
      ASSERT_TRUE(world.router().Send(peers[rank], Lane::kBulk, layer).ok());
    };
    send(1, 0, 64);
    ASSERT_TRUE(RankWorld::Until([&] {  // its question waits at the other rank
      return world.rank(0).rank().figures().exchange.parked == 1;
    })) << AttentionMethodName(method);
    EXPECT_EQ(replies, 0);
    send(0, 64, 100);
    ASSERT_TRUE(RankWorld::Until([&] { return replies == 2; }));
    EXPECT_EQ(FirstDifference(expected.rows(), out.rows()), "") << AttentionMethodName(method);
    for (const PeerId& peer : peers) {
      const Message abort = BuildStepEnd(plan, StepEnd::kAbort);
      ASSERT_TRUE(world.router().Send(peer, Lane::kControl, abort).ok());
    }
  }
}

TEST(AttentionRankFailureTest, ARankWithoutASessionsKeysMakesItALostOne) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  RankWorld world(model, 2);
  ASSERT_TRUE(world.port().BeginStep({}).ok());
  ASSERT_TRUE(world.port().CommitStep().ok());
  StepPlan plan = PlanOf(0, 1);
  RowBatch<Bf16> row(1, 64);
  // Far beyond what anybody has: the session was never here.
  plan.sessions[0].position_begin = 64 * 7;
  ASSERT_TRUE(world.port().BeginStep(plan).ok());
  const absl::Status status = world.port().RunLayer(LayerId(0), row.rows(), row.rows());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 0 positions"));
  world.port().AbortStep();
  EXPECT_THAT(world.port().TakeLostSessions(), ::testing::ElementsAre(kSession));
}

}  // namespace
}  // namespace moebius
