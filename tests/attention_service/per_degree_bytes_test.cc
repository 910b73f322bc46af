// SPDX-License-Identifier: Apache-2.0
// What the per-degree sum sends between ranks, against the cost model's formulas.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/attention/cost_model.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/rank_world.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::MakeAttentionCase;
using testing::MakeRows;
using testing::RankWorld;

constexpr int64_t kSpan = 64;
constexpr int32_t kLayers = 2;
constexpr SessionId kSession{5};

AttentionHeads HeadsOfCase(const AttentionCase& model) {
  const AttentionConfig& config = model.facts.config;
  AttentionHeads heads{.query_heads = config.num_query_heads,
                       .kv_heads = config.num_kv_heads,
                       .head_dim = config.qk_head_dim,
                       .value_dim = config.v_head_dim};
  if (config.mla.has_value()) {
    heads.latent_dim = config.mla->kv_lora_rank + config.mla->qk_rope_dim;
  }
  return heads;
}

// Rows of the session's next positions, through all layers.
void RunRows(RankWorld& world, const AttentionCase& model, uint64_t step, int64_t begin,
             int64_t num_rows, int64_t prompt_length) {
  const RowBatch<Bf16> rows = MakeRows(3, num_rows, model.facts.hidden_size);
  RowBatch<Bf16> out(num_rows, model.facts.hidden_size);
  const StepPlan plan{.step = step,
                      .sessions = {{.session = kSession,
                                    .num_rows = num_rows,
                                    .position_begin = begin,
                                    .prompt_length = prompt_length}},
                      .num_rows = num_rows};
  ASSERT_TRUE(world.port().BeginStep(plan).ok());
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const absl::Status status = world.port().RunLayer(LayerId(layer), rows.rows(), out.rows());
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_TRUE(world.port().CommitStep().ok());
}

// Of all ranks, a layer; answers without the header that each has.
struct Sent {
  int64_t answers = 0;
  int64_t answer_rows_bytes = 0;
  int64_t question_bytes = 0;
};
Sent SentBy(RankWorld& world) {
  Sent sent;
  for (int32_t rank = 0; rank < world.num_ranks(); ++rank) {
    const ExchangeFigures figures = world.rank(rank).rank().figures().exchange;
    sent.answers += figures.answers / kLayers;
    sent.answer_rows_bytes += (figures.answer_bytes - 64 * figures.answers) / kLayers;
    sent.question_bytes += figures.question_bytes / kLayers;
  }
  return sent;
}

using Case = std::tuple<std::string, AttentionLayout>;

// Spans of two key blocks.
AttentionCase MakeCase(const Case& of) {
  AttentionCase model = MakeAttentionCase(std::get<0>(of), kSpan);
  model.facts.key_block = kSpan / 2;
  model.facts.sum = AttentionSum::kPerDegree;
  model.facts.layout = std::get<1>(of);
  return model;
}

class PerDegreeBytesTest : public ::testing::TestWithParam<Case> {
 protected:
  // Of all ranks together.
  double Predicted(AttentionMethod method, int64_t cached, int64_t rows, int32_t num_ranks) const {
    const MethodCost cost = PredictCost(
        method, HeadsOfCase(model_), {.new_tokens = rows, .cached_tokens = cached},
        {.flops = 1e9, .bandwidth = 1e9, .latency = 1e-6},
        {.num_ranks = num_ranks,
         .sum = AttentionSum::kPerDegree,
         .layout = model_.facts.layout,
         .span = kSpan,
         .key_block = kSpan / 2,
         .ulysses_ranks = method == AttentionMethod::k2d ? GroupSizeOf2d(num_ranks) : 0});
    return cost.bytes * num_ranks;
  }

  AttentionCase model_ = MakeCase(GetParam());
};

// Every rank has rows in the step that is counted.
TEST_P(PerDegreeBytesTest, OfPassKvAreThoseOfTheFormula) {
  for (const int32_t num_ranks : {2, 3, 4}) {
    for (const int64_t cached : {0, 130}) {
      RankWorld world(model_, num_ranks, AttentionMethod::kRingPassKv);
      int64_t before = 0;
      if (cached > 0) {
        RunRows(world, model_, 1, 0, cached, cached + 280);
        before = SentBy(world).answer_rows_bytes;
      }
      RunRows(world, model_, 2, cached, 280, cached + 280);
      EXPECT_NEAR(SentBy(world).answer_rows_bytes - before,
                  Predicted(AttentionMethod::kRingPassKv, cached, 280, num_ranks), 1)
          << num_ranks << " ranks, " << cached << " keys before";
    }
  }
}

// The keys before cover whole units, so that each rank has some for every row.
TEST_P(PerDegreeBytesTest, OfPassQAreThoseOfTheFormula) {
  for (const int32_t num_ranks : {2, 3}) {
    const int64_t cached = 2 * num_ranks * kSpan;
    RankWorld world(model_, num_ranks, AttentionMethod::kRingPassQ);
    RunRows(world, model_, 1, 0, cached, cached + 40);
    const Sent before = SentBy(world);
    RunRows(world, model_, 2, cached, 40, cached + 40);
    const Sent after = SentBy(world);
    const AttentionConfig& config = model_.facts.config;
    const int64_t returned = (num_ranks - 1) * 40 * int64_t{config.num_query_heads} *
                             (4 * int64_t{config.v_head_dim} + 4);
    EXPECT_EQ(after.answer_rows_bytes - before.answer_rows_bytes, returned) << num_ranks;
    const int64_t queries =
        (num_ranks - 1) * 40 * int64_t{config.num_query_heads} * config.qk_head_dim * 2;
    const int64_t asked = after.question_bytes - before.question_bytes;
    EXPECT_GT(asked, queries);
    EXPECT_LE(asked, queries + (after.answers - before.answers) * 192);  // who asks for what
    EXPECT_NEAR(queries + returned, Predicted(AttentionMethod::kRingPassQ, cached, 40, num_ranks),
                1);
  }
}

// The latent is one head that all need.
TEST_P(PerDegreeBytesTest, OfHeadsAreThoseOfTheFormula) {
  const bool is_latent = model_.facts.config.mla.has_value();
  for (const AttentionMethod method : {AttentionMethod::kUlysses, AttentionMethod::k2d}) {
    if (is_latent) continue;
    RankWorld world(model_, 4, method);
    RunRows(world, model_, 1, 0, 300, 300);
    EXPECT_NEAR(SentBy(world).answer_rows_bytes, Predicted(method, 0, 300, 4), 4)
        << AttentionMethodName(method);
  }
}

TEST_P(PerDegreeBytesTest, OfDecodeAreOneStateOfEachRank) {
  constexpr int32_t kNumRanks = 3;
  const AttentionConfig& config = model_.facts.config;
  RankWorld world(model_, kNumRanks);
  RunRows(world, model_, 1, 0, 500, 500);
  const Sent before = SentBy(world);
  RunRows(world, model_, 2, 500, 1, 500);
  EXPECT_EQ(SentBy(world).answer_rows_bytes - before.answer_rows_bytes,
            (kNumRanks - 1) * config.num_query_heads * (4 * config.v_head_dim + 4));
}

TEST_P(PerDegreeBytesTest, ADeadRankFailsTheStepAndItsSessionIsLost) {
  RankWorld world(model_, 3, AttentionMethod::kRingPassKv);
  RunRows(world, model_, 1, 0, 200, 400);
  world.Kill(1);
  ASSERT_TRUE(RankWorld::Until([&] { return !world.directory().IsAttentionUsable(1); }));
  const StepPlan plan{.step = 2,
                      .sessions = {{.session = kSession,
                                    .num_rows = 100,
                                    .position_begin = 200,
                                    .prompt_length = 400}},
                      .num_rows = 100};
  EXPECT_TRUE(absl::IsUnavailable(world.port().BeginStep(plan)));
  world.Start(1);
  ASSERT_TRUE(world.AllConnected());
  EXPECT_TRUE(absl::IsUnavailable(world.port().BeginStep(plan)));
  EXPECT_EQ(world.port().TakeLostSessions(), std::vector<SessionId>{kSession});
}

INSTANTIATE_TEST_SUITE_P(Cases, PerDegreeBytesTest,
                         ::testing::Combine(::testing::Values("gqa", "mqa", "mha", "mla"),
                                            ::testing::ValuesIn(kAttentionLayouts)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               AttentionLayoutName(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace moebius
