// SPDX-License-Identifier: Apache-2.0
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "attention_service/metrics.h"
#include "moebius/base/error.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using testing::MakeAttentionCase;
using testing::MakePipeline;
using testing::MakeRows;
using testing::RunStep;

StepPlan PlanOf(uint64_t session, int64_t begin, int64_t end) {
  return {.sessions = {{.session = SessionId(session),
                        .num_rows = end - begin,
                        .position_begin = begin,
                        .prompt_length = end}},
          .num_rows = end - begin};
}

class KvAccountingTest : public ::testing::Test {
 protected:
  // Five blocks of 64 positions.
  testing::AttentionCase model_ = MakeAttentionCase("gqa", 64);
  Executor executor_{1};
  std::unique_ptr<AttentionPipeline> pipeline_ =
      MakePipeline(model_, BestKernels(), executor_, 5 * 64);
};

TEST_F(KvAccountingTest, CountsBlocksFromReservationToEndOfSession) {
  EXPECT_EQ(pipeline_->usage().num_blocks, 5);
  EXPECT_EQ(pipeline_->usage().max_tokens(), 320);
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 0, 65)).ok());
  EXPECT_EQ(pipeline_->usage().used_blocks, 2);
  EXPECT_EQ(pipeline_->SessionLength(SessionId(1)), 0);
  ASSERT_TRUE(pipeline_->CommitStep().ok());
  EXPECT_EQ(pipeline_->SessionLength(SessionId(1)), 65);
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 65, 128)).ok());
  EXPECT_EQ(pipeline_->usage().used_blocks, 2);
  ASSERT_TRUE(pipeline_->CommitStep().ok());
  pipeline_->EndSession(SessionId(1));
  EXPECT_EQ(pipeline_->usage().used_blocks, 0);
  EXPECT_EQ(pipeline_->usage().num_sessions, 0);
  EXPECT_EQ(pipeline_->SessionLength(SessionId(1)), 0);
}

TEST_F(KvAccountingTest, AMockCountsKvAndAnswersZerosOfTheRightShape) {
  for (const Shard shard : {Shard{0, 1}, Shard{1, 2}}) {
    const auto mock = AttentionPipeline::MakeMock(
        model_.facts, absl::Microseconds(50), BestKernels(), executor_,
        pipeline_->usage().num_blocks * pipeline_->usage().block_bytes, shard);
    ASSERT_TRUE(mock.ok()) << mock.status();
    EXPECT_EQ((*mock)->weight_bytes(), 0);
    EXPECT_EQ((*mock)->usage().num_blocks, 5);
    ASSERT_TRUE((*mock)->BeginStep(PlanOf(1, 0, 65)).ok());
    const int64_t num_rows = (*mock)->num_own_rows();
    RowBatch<Bf16> in(num_rows, model_.facts.hidden_size);
    RowBatch<Bf16> out(num_rows, model_.facts.hidden_size);
    for (int64_t row = 0; row < num_rows; ++row) {
      std::fill_n(out.rows().row(row), model_.facts.hidden_size, ToBf16(7));
    }
    for (int64_t layer = 0; layer < model_.facts.num_layers; ++layer) {
      EXPECT_TRUE((*mock)->RunLayer(layer, in.rows(), out.rows()).ok());
    }
    if (num_rows > 0) EXPECT_EQ(ToFloat(out.rows().row(num_rows - 1)[3]), 0);
    EXPECT_TRUE((*mock)->CommitStep().ok());
    EXPECT_EQ((*mock)->SessionLength(SessionId(1)), 65);
    (*mock)->EndSession(SessionId(1));
    EXPECT_EQ((*mock)->usage().used_blocks, 0);
  }
}

TEST_F(KvAccountingTest, ShowsItsBudgetInMetrics) {
  Registry registry;
  const auto handle = registry.AddCollector(
      [this](MetricWriter& writer) { WriteKvMetrics(pipeline_->usage(), writer); });
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 0, 65)).ok());
  ASSERT_TRUE(pipeline_->CommitStep().ok());
  std::string scrape = registry.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_blocks"), 5);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_blocks_in_use"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_cache_usage_ratio"), 0.4);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_sessions"), 1);
  pipeline_->EndSession(SessionId(1));
  scrape = registry.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_blocks_in_use"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_sessions"), 0);
  EXPECT_EQ(MetricsErrors(scrape), 0);
}

TEST_F(KvAccountingTest, GivesEverythingBackWhenAStepIsAborted) {
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 0, 40)).ok());
  ASSERT_TRUE(pipeline_->CommitStep().ok());
  StepPlan plan = PlanOf(1, 40, 200);
  plan.sessions.push_back(
      {.session = SessionId(2), .row_begin = 160, .num_rows = 10, .prompt_length = 10});
  plan.num_rows = 170;
  ASSERT_TRUE(pipeline_->BeginStep(plan).ok());
  EXPECT_EQ(pipeline_->usage().used_blocks, 5);
  EXPECT_EQ(pipeline_->usage().num_sessions, 2);
  pipeline_->AbortStep();
  EXPECT_EQ(pipeline_->usage().used_blocks, 1);
  EXPECT_EQ(pipeline_->usage().num_sessions, 1);
  EXPECT_EQ(pipeline_->SessionLength(SessionId(1)), 40);
  pipeline_->AbortStep();
  pipeline_->EndSession(SessionId(77));
  EXPECT_EQ(pipeline_->usage().used_blocks, 1);
}

TEST_F(KvAccountingTest, EndingASessionInsideItsStepAbortsTheStep) {
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 0, 40)).ok());
  pipeline_->EndSession(SessionId(1));
  EXPECT_EQ(pipeline_->usage().used_blocks, 0);
  EXPECT_EQ(pipeline_->CommitStep().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(KvAccountingTest, RefusesWhatThePoolCannotHoldWithBothNumbers) {
  const absl::Status status = pipeline_->BeginStep(PlanOf(1, 0, 321));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("needs 321 KV slots, pool has 320"));
  EXPECT_EQ(pipeline_->usage().used_blocks, 0);
  EXPECT_EQ(pipeline_->usage().num_sessions, 0);
}

TEST_F(KvAccountingTest, RefusesWhatOthersHoldAndLeavesThemAlone) {
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 0, 256)).ok());
  ASSERT_TRUE(pipeline_->CommitStep().ok());
  const absl::Status status = pipeline_->BeginStep(PlanOf(2, 0, 65));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("needs 128 more KV slots, 64 of 320 are free"));
  EXPECT_EQ(pipeline_->usage().used_blocks, 4);
  pipeline_->EndSession(SessionId(1));
  EXPECT_TRUE(pipeline_->BeginStep(PlanOf(2, 0, 65)).ok());
}

TEST_F(KvAccountingTest, RefusesAGapAndABrokenPlan) {
  EXPECT_EQ(pipeline_->BeginStep(PlanOf(1, 1, 2)).code(), absl::StatusCode::kFailedPrecondition);
  StepPlan plan = PlanOf(1, 0, 4);
  plan.num_rows = 5;
  EXPECT_EQ(pipeline_->BeginStep(plan).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pipeline_->usage().num_sessions, 0);
}

TEST_F(KvAccountingTest, RefusesRowsThatAreNotTheSteps) {
  RowBatch<Bf16> rows(4, 64);
  EXPECT_EQ(pipeline_->RunLayer(0, rows.rows(), rows.rows()).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(pipeline_->BeginStep(PlanOf(1, 0, 3)).ok());
  EXPECT_EQ(pipeline_->RunLayer(0, rows.rows(), rows.rows()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pipeline_->RunLayer(2, rows.rows().Slice(0, 3), rows.rows().Slice(0, 3)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(KvAccountingTest, TakesAStepWithoutRows) {
  ASSERT_TRUE(pipeline_->BeginStep({}).ok());
  EXPECT_TRUE(
      pipeline_->RunLayer(0, Bf16Rows(nullptr, 0, 64), MutableBf16Rows(nullptr, 0, 64)).ok());
  EXPECT_TRUE(pipeline_->CommitStep().ok());
}

TEST_F(KvAccountingTest, ReusedBlocksStartEmpty) {
  const RowBatch<Bf16> rows = MakeRows(3, 70, 64);
  const RowBatch<Bf16> first = RunStep(*pipeline_, SessionId(1), rows.rows(), 0, 70, 70);
  pipeline_->EndSession(SessionId(1));
  RowBatch<Bf16> poison(320, 64);
  for (int64_t r = 0; r < 320; ++r) {
    for (Bf16& element : poison.rows().span(r)) element = Bf16{0x7FC0};
  }
  RunStep(*pipeline_, SessionId(2), poison.rows(), 0, 320, 320);
  pipeline_->EndSession(SessionId(2));
  const RowBatch<Bf16> again = RunStep(*pipeline_, SessionId(1), rows.rows(), 0, 70, 70);
  EXPECT_EQ(testing::FirstDifference(first.rows(), again.rows()), "");
}

TEST(KvBudgetTest, ThatHoldsNoBlockIsRefusedWithTheBytesOfOne) {
  const testing::AttentionCase model = MakeAttentionCase("mla", 64);
  Executor executor(1);
  const auto pipeline = AttentionPipeline::Make(
      model.facts, [](int64_t) { return AttentionLayerWeights{}; }, BestKernels(), executor, 100);
  ASSERT_EQ(pipeline.status().code(), absl::StatusCode::kResourceExhausted);
  // 2 layers * 64 positions * (32 + 8, padded to 64) elements of 2 bytes.
  EXPECT_THAT(pipeline.status().message(), HasSubstr("take 16384 bytes"));
  EXPECT_THAT(HintOf(pipeline.status()), HasSubstr("--kv-budget 16384 or more"));
}

}  // namespace
}  // namespace moebius
