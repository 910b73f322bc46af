// SPDX-License-Identifier: Apache-2.0
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "tests/attention_service/attention_fixture.h"

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
  ASSERT_EQ(pipeline.status().code(), absl::StatusCode::kInvalidArgument);
  // 2 layers * 64 positions * (32 + 8, padded to 64) elements of 2 bytes.
  EXPECT_THAT(pipeline.status().message(), HasSubstr("take 16384 bytes"));
  EXPECT_THAT(HintOf(pipeline.status()), HasSubstr("at least 16384 bytes"));
}

}  // namespace
}  // namespace moebius
