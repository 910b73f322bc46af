// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: the router's port, the ranks' doors and their exchange over real links.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/brief_work.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "moebius/wire/step_codec.h"
#include "router_service/rank_probe.h"
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
using testing::RankProcess;
using testing::RankWorld;
using testing::RunAlone;
using testing::RunInSteps;
using testing::StepEnds;

class AttentionRankTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AttentionRankTest, RanksOverLinksGiveTheBitsOfOnePipeline) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  const RowBatch<Bf16> expected = RunAlone(model, rows.rows());
  for (const int32_t num_ranks : {1, 2, 3, 5}) {
    RankWorld world(model, num_ranks);
    const RowBatch<Bf16> found = RunInSteps(world.port(), rows.rows(), StepEnds());
    EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "") << num_ranks << " ranks";
    world.port().EndSession(kSession);
    EXPECT_TRUE(RankWorld::Until([&] {
      int64_t used = 0;
      for (int32_t r = 0; r < num_ranks; ++r) {
        used += world.rank(r).rank().figures().kv.num_sessions;
      }
      return used == 0;
    })) << num_ranks;
  }
}

TEST_P(AttentionRankTest, EveryMethodOverLinksGivesTheBitsOfOnePipeline) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  const RowBatch<Bf16> expected = RunAlone(model, rows.rows());
  for (const int32_t num_ranks : {2, 4}) {
    for (const AttentionMethod method : kAttentionMethods) {
      const bool has_groups = num_ranks == 4 || method != AttentionMethod::k2d;
      if (method == AttentionMethod::kLocal || !has_groups) continue;
      RankWorld world(model, num_ranks, method);
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        world.faults(rank).Set(
            {.min_delay = absl::ZeroDuration(), .max_delay = absl::Microseconds(300 * rank)});
      }
      const RowBatch<Bf16> found =
          RunInSteps(world.port(), rows.rows(), {20, 100, kPrompt - 1, kPrompt + 1, kLength});
      EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "")
          << num_ranks << " ranks, " << AttentionMethodName(method);
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const auto methods = world.rank(rank).rank().figures().shard.methods;
        EXPECT_EQ(methods[static_cast<size_t>(method)], 4);
      }
    }
  }
}

TEST_P(AttentionRankTest, DelaysThatDifferByRankChangeNoBit) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  const RowBatch<Bf16> expected = RunAlone(model, rows.rows());
  RankWorld world(model, 3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    world.faults(rank).Set(
        {.min_delay = absl::ZeroDuration(), .max_delay = absl::Milliseconds(2 * rank)});
  }
  const RowBatch<Bf16> found =
      RunInSteps(world.port(), rows.rows(), {130, 131, kPrompt, kPrompt + 5, kLength});
  EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "");
}

// Of a short session all that has few rows; a prompt of many rows, and generated rows that see
// other ranks' keys, on the rank's own thread.
TEST_P(AttentionRankTest, BriefStepsRunOnTheThreadThatDeliversThem) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
  const RowBatch<Bf16> expected = RunAlone(model, rows.rows());
  for (const int32_t num_ranks : {1, 2}) {
    RankWorld world(model, num_ranks);
    const auto delivered = [&] {
      int64_t sum = 0;
      for (int32_t r = 0; r < num_ranks; ++r) sum += world.rank(r).rank().figures().delivered;
      return sum;
    };
    const auto run = [&](const std::vector<int64_t>& ends) {
      const RowBatch<Bf16> found =
          RunInSteps(world.port(), rows.rows().Slice(0, ends.back()), ends);
      EXPECT_EQ(FirstDifference(expected.rows().Slice(0, ends.back()), found.rows()), "");
    };
    // Plans and ends of each rank, the rows of two layers of one.
    const int64_t brief = 7 * (2 * num_ranks + 2);
    run({kMaxBriefRows, 9, 10, 11, 12, 16, 17});
    EXPECT_TRUE(RankWorld::Until([&] { return delivered() == brief; })) << delivered();
    run({kMaxBriefRows + 1});
    EXPECT_TRUE(RankWorld::Until([&] {
      int64_t steps = 0;
      for (int32_t r = 0; r < num_ranks; ++r) steps += world.rank(r).rank().figures().steps;
      return steps == 8 * num_ranks;
    }));
    EXPECT_EQ(delivered(), brief) << num_ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionRankTest, ::testing::Values("gqa", "mla"),
                         [](const auto& info) { return info.param; });

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// docs/attention_ranks.md, "Bytes of a step".
TEST(AttentionRankBytesTest, AreThoseOfTheFormula) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  const AttentionConfig& config = model.facts.config;
  const int64_t hidden = model.facts.hidden_size;
  const int64_t kv_width = config.num_kv_heads * (config.qk_head_dim + config.v_head_dim);
  const int64_t heads = config.num_query_heads;
  const RowBatch<Bf16> rows = MakeRows(3, kLength, hidden);
  for (const int32_t num_ranks : {2, 3}) {
    RankWorld world(model, num_ranks);
    RunInSteps(world.port(), rows.rows(), {kPrompt, kPrompt + 1});
    const auto first_rank = static_cast<int32_t>(kSession.value() % num_ranks);
    int64_t questions = 0;  // bytes of all ranks, of both steps and layers
    int64_t answers = 0;
    // Prompt: each rank asks, round by round and holder by holder, for the spans before its last.
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      int64_t last = -1;
      for (int64_t span = 0; span * 64 < kPrompt; ++span) {
        if (SpanOwner(span, first_rank, num_ranks) == rank) last = span;
      }
      for (int64_t begin = 0; begin < last; begin += 2 * num_ranks) {
        for (int32_t holder = 0; holder < num_ranks; ++holder) {
          int64_t spans = 0;
          for (int64_t s = begin; s < std::min(begin + 2 * num_ranks, last); ++s) {
            if (holder != rank && SpanOwner(s, first_rank, num_ranks) == holder) ++spans;
          }
          if (spans == 0) continue;
          questions += 2 * Padded(8 + 12 * spans);
          answers += 2 * (64 + spans * 64 * kv_width * 2);
        }
      }
    }
    // One generated row: its query to each holder, a state of each head and foreign span back.
    const int64_t span = kPrompt / 64;
    const int32_t owner = SpanOwner(span, first_rank, num_ranks);
    for (int32_t holder = 0; holder < num_ranks; ++holder) {
      const int64_t spans = NumOwnedSpans({0, span}, first_rank, {holder, num_ranks});
      if (holder == owner || spans == 0) continue;
      questions += 2 * (Padded(4 + 20) + heads * config.qk_head_dim * 2);
      answers += 2 * (64 + heads * spans * (4 * config.v_head_dim + 8));
    }
    ExchangeFigures sum;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const ExchangeFigures figures = world.rank(rank).rank().figures().exchange;
      sum.question_bytes += figures.question_bytes;
      sum.answer_bytes += figures.answer_bytes;
      sum.questions += figures.questions;
      sum.answers += figures.answers;
    }
    EXPECT_EQ(sum.question_bytes, questions) << num_ranks;
    EXPECT_EQ(sum.answer_bytes, answers) << num_ranks;
    EXPECT_EQ(sum.questions, sum.answers);
    // The router: every row there and back in each layer, a plan and an end for each rank and step.
    const RemoteAttentionFigures figures = world.port().figures();
    const int64_t row_messages = figures.messages_received;
    EXPECT_EQ(figures.messages_sent, row_messages + 2 * 2 * num_ranks);
    EXPECT_EQ(figures.bytes_received, 2 * (kPrompt + 1) * hidden * 2 + 64 * row_messages);
    EXPECT_EQ(figures.bytes_sent,
              2 * (kPrompt + 1) * hidden * 2 + 2 * num_ranks * (Padded(4 + 40) + Padded(1)));
  }
}

TEST(SharedKvPoolTest, HoldsWhatTheSmallestRankHolds) {
  const std::vector<KvPool> ranks = {{.block_tokens = 64, .num_blocks = 100},
                                     {.block_tokens = 64, .num_blocks = 37}};
  const KvPool shared = SharedKvPool(ranks, {128, 128});
  EXPECT_EQ(shared.block_tokens, 256);
  EXPECT_EQ(shared.num_blocks, 18);
  EXPECT_EQ(SharedKvPool({ranks[1]}, {128, 128}).num_blocks, 37);
}

TEST(SharedKvPoolTest, LeavesRoomForUnevenSharesOfThePerDegreeSum) {
  const std::vector<KvPool> ranks(3, {.block_tokens = 64, .num_blocks = 100});
  const SpanGeometry geometry(256, 64, AttentionSum::kPerDegree, 3);
  const KvPool shared = SharedKvPool(ranks, geometry);
  EXPECT_EQ(shared.block_tokens, 768);
  EXPECT_EQ(shared.num_blocks, 16);  // of four blocks and two more
}

TEST(RankProbeTest, FindsWhatLinksAndKernelsCanDoOfTheSlowestRank) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  RankWorld world(model, 3);
  ASSERT_TRUE(world.AllConnected());
  std::vector<PeerId> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) ranks.push_back(*world.directory().AttentionPeer(rank));
  const absl::StatusOr<RankRates> rates = MeasureRankRates(world.router(), ranks);
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(rates->flops, RankProcess::kKernelFlops);
  EXPECT_GT(rates->latency, 0);
  EXPECT_LT(rates->latency, 0.1);
  EXPECT_GT(rates->bandwidth, 1e6);
  // One slow link decides: 10 ms to each answer.
  LinkFaults slow;
  slow.min_delay = slow.max_delay = absl::Milliseconds(10);
  world.faults(1).Set(slow);
  const absl::StatusOr<RankRates> slowest = MeasureRankRates(world.router(), ranks);
  ASSERT_TRUE(slowest.ok()) << slowest.status();
  EXPECT_GE(slowest->latency, 0.005);
}

TEST(RankProbeTest, ARankThatDoesNotAnswerIsNamed) {
  const AttentionCase model = MakeAttentionCase("gqa", 64);
  RankWorld world(model, 2);
  ASSERT_TRUE(world.AllConnected());
  const std::vector<PeerId> ranks = {*world.directory().AttentionPeer(0),
                                     *world.directory().AttentionPeer(1)};
  LinkFaults cut;
  cut.cut = true;
  world.faults(1).Set(cut);
  const absl::StatusOr<RankRates> rates = MeasureRankRates(world.router(), ranks);
  EXPECT_EQ(rates.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(rates.status().message()), HasSubstr("attention rank 1"));
}

}  // namespace
}  // namespace moebius
