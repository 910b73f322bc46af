// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "gtest/gtest.h"

#include "tests/attention_service/attention_fixture.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::AttentionCaseNames;
using testing::FirstDifference;
using testing::MakeAttentionCase;
using testing::MakePipeline;
using testing::MakeRows;
using testing::ReferenceOutput;
using testing::RunInChunks;
using testing::RunStep;

class AttentionBitsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AttentionBitsTest, EqualTheScalarReferenceForEveryTierSpanLengthAndRole) {
  for (const int64_t span : {64, 128}) {
    const AttentionCase model = MakeAttentionCase(GetParam(), span);
    const RowBatch<Bf16> rows = MakeRows(7, 200, model.facts.hidden_size);
    // The last 30 rows have the generated role.
    const RowBatch<Bf16> expected = ReferenceOutput(model, rows.rows(), 170);
    for (const Tier tier : HostTiers()) {
      Executor executor(2);
      const auto pipeline = MakePipeline(model, *FindKernels(tier), executor);
      for (const int64_t length : {0, 1, 2, 7, 63, 64, 65, 200}) {
        const RowBatch<Bf16> found = RunStep(*pipeline, SessionId(1), rows.rows(), 0, length, 170);
        EXPECT_EQ(FirstDifference(expected.rows().Slice(0, length), found.rows()), "")
            << TierName(tier) << ", span " << span << ", length " << length;
        pipeline->EndSession(SessionId(1));
      }
    }
  }
}

// A window in the first layer, none in the second: the first one's bits, and both layers' in
// chunks.
TEST_P(AttentionBitsTest, EqualTheScalarReferenceForEveryTierAndWindow) {
  for (const int64_t size : {1, 3, 63, 64, 65, 1000}) {
    AttentionCase model = MakeAttentionCase(GetParam(), 64);
    model.facts.key_block = 32;  // two blocks in a span
    model.facts.config.windows = {size, 0};
    const RowBatch<Bf16> rows = MakeRows(7, 200, model.facts.hidden_size);
    const RowBatch<Bf16> expected = ReferenceOutput(model, rows.rows(), 170);
    for (const Tier tier : HostTiers()) {
      const bool is_best = tier == BestKernels().tier;
      Executor executor(is_best ? 3 : 1);
      const auto pipeline = MakePipeline(model, *FindKernels(tier), executor);
      for (const int64_t chunk : {200, 130, 1}) {
        if (chunk == 1 && !is_best) continue;
        const RowBatch<Bf16> found = RunInChunks(*pipeline, SessionId(1), rows.rows(), chunk, 170);
        EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "")
            << TierName(tier) << ", window " << size << ", chunks of " << chunk;
        pipeline->EndSession(SessionId(1));
      }
    }
  }
}

TEST_P(AttentionBitsTest, OfALayerWithoutAWindowDoNotDependOnTheOthersWindow) {
  AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(7, 150, model.facts.hidden_size);
  std::vector<RowBatch<Bf16>> outs;
  for (const std::vector<int64_t>& windows :
       {std::vector<int64_t>{}, std::vector<int64_t>{5, 0}, std::vector<int64_t>{0, 5}}) {
    model.facts.config.windows = windows;
    Executor executor(2);
    const auto pipeline = MakePipeline(model, BestKernels(), executor);
    outs.push_back(RunStep(*pipeline, SessionId(1), rows.rows(), 0, 150, 140, 1));
  }
  EXPECT_EQ(FirstDifference(outs[0].rows(), outs[1].rows()), "");
  EXPECT_NE(FirstDifference(outs[0].rows(), outs[2].rows()), "");  // else the window was dropped
}

TEST_P(AttentionBitsTest, DoNotDependOnChunksOrThreads) {
  for (const int64_t span : {64, 128}) {
    const AttentionCase model = MakeAttentionCase(GetParam(), span);
    const RowBatch<Bf16> rows = MakeRows(8, 200, model.facts.hidden_size);
    RowBatch<Bf16> expected;
    for (const int threads : {1, 2, 3}) {
      Executor executor(threads);
      const auto pipeline = MakePipeline(model, BestKernels(), executor);
      for (const int64_t chunk : {200, 1, 7, 64}) {
        const RowBatch<Bf16> found = RunInChunks(*pipeline, SessionId(1), rows.rows(), chunk, 170);
        pipeline->EndSession(SessionId(1));
        if (expected.num_rows() == 0) {
          expected = RunInChunks(*pipeline, SessionId(1), rows.rows(), chunk, 170);
          pipeline->EndSession(SessionId(1));
        }
        EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "")
            << threads << " threads, chunks of " << chunk << ", span " << span;
      }
    }
  }
}

// Prefill of several sessions and decode of others in one step, rows of both roles.
TEST_P(AttentionBitsTest, DoNotDependOnTheCompanyInAStep) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const int64_t width = model.facts.hidden_size;
  struct Company {
    SessionId id;
    int64_t length;
    int64_t prompt_length;
    int64_t committed;
    RowBatch<Bf16> rows;
    RowBatch<Bf16> alone;
  };
  Executor executor(3);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  std::vector<Company> sessions;
  const int64_t shapes[][3] = {{150, 149, 149}, {90, 90, 0}, {1, 1, 0}, {77, 40, 70}, {65, 64, 64}};
  int64_t num_rows = 0;
  for (const auto& [length, prompt_length, committed] : shapes) {
    const uint64_t id = sessions.size() + 1;
    sessions.push_back({SessionId(id), length, prompt_length, committed,
                        MakeRows(20 + id, length, width), RowBatch<Bf16>()});
    Company& session = sessions.back();
    session.alone =
        RunInChunks(*pipeline, SessionId(99), session.rows.rows(), length, prompt_length);
    pipeline->EndSession(SessionId(99));
    if (committed > 0) {
      RunStep(*pipeline, session.id, session.rows.rows(), 0, committed, prompt_length);
    }
    num_rows += length - committed;
  }
  StepPlan plan{.num_rows = num_rows};
  RowBatch<Bf16> in(num_rows, width);
  RowBatch<Bf16> out(num_rows, width);
  int64_t row = 0;
  for (const Company& session : sessions) {
    plan.sessions.push_back({.session = session.id,
                             .row_begin = row,
                             .num_rows = session.length - session.committed,
                             .position_begin = session.committed,
                             .prompt_length = session.prompt_length});
    for (int64_t r = session.committed; r < session.length; ++r, ++row) {
      std::copy_n(session.rows.rows().row(r), width, in.rows().row(row));
    }
  }
  ASSERT_TRUE(pipeline->BeginStep(plan).ok());
  ASSERT_TRUE(pipeline->RunLayer(0, in.rows(), out.rows()).ok());
  ASSERT_TRUE(pipeline->CommitStep().ok());
  for (size_t i = 0; i < sessions.size(); ++i) {
    const SessionRows& rows = plan.sessions[i];
    EXPECT_EQ(
        FirstDifference(sessions[i].alone.rows().Slice(rows.position_begin, rows.position_end()),
                        out.rows().Slice(rows.row_begin, rows.row_end())),
        "")
        << "session " << rows.session;
  }
}

TEST_P(AttentionBitsTest, OfDecodeComeBackWhenPromptAndGeneratedTokensAreComputedAgain) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(9, 150, model.facts.hidden_size);
  constexpr int64_t kPrompt = 100;
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  RowBatch<Bf16> decoded(150, model.facts.hidden_size);
  RunStep(*pipeline, SessionId(1), rows.rows(), 0, kPrompt, kPrompt);
  for (int64_t r = kPrompt; r < 149; ++r) {
    RunStep(*pipeline, SessionId(1), rows.rows(), r, r + 1, kPrompt);
  }
  const RowBatch<Bf16> last = RunStep(*pipeline, SessionId(1), rows.rows(), 149, 150, kPrompt);
  pipeline->EndSession(SessionId(1));

  RunStep(*pipeline, SessionId(2), rows.rows(), 0, 149, kPrompt);
  const RowBatch<Bf16> again = RunStep(*pipeline, SessionId(2), rows.rows(), 149, 150, kPrompt);
  EXPECT_EQ(FirstDifference(last.rows(), again.rows()), "");
}

TEST_P(AttentionBitsTest, OfARepeatedAttemptAreThoseOfTheFirst) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(10, 100, model.facts.hidden_size);
  const RowBatch<Bf16> noise = MakeRows(11, 100, model.facts.hidden_size, 50.0f);
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  const RowBatch<Bf16> expected = RunInChunks(*pipeline, SessionId(1), rows.rows(), 100, 90);
  pipeline->EndSession(SessionId(1));

  RunStep(*pipeline, SessionId(1), rows.rows(), 0, 40, 90);
  StepPlan plan{.sessions = {{.session = SessionId(1),
                              .num_rows = 60,
                              .position_begin = 40,
                              .prompt_length = 90}},
                .num_rows = 60};
  RowBatch<Bf16> out(60, model.facts.hidden_size);
  for (plan.attempt = 0; plan.attempt < 2; ++plan.attempt) {
    ASSERT_TRUE(pipeline->BeginStep(plan).ok());
    const Bf16Rows input = plan.attempt == 0 ? noise.rows() : rows.rows();
    ASSERT_TRUE(pipeline->RunLayer(0, input.Slice(40, 100), out.rows()).ok());
  }
  ASSERT_TRUE(pipeline->CommitStep().ok());
  EXPECT_EQ(FirstDifference(expected.rows().Slice(40, 100), out.rows()), "");
}

// What an aborted attempt left behind the last committed position must not come back as 0 · NaN.
TEST_P(AttentionBitsTest, IgnoreWhatAnAbortedStepWrote) {
  const AttentionCase model = MakeAttentionCase(GetParam(), 64);
  const RowBatch<Bf16> rows = MakeRows(12, 41, model.facts.hidden_size);
  RowBatch<Bf16> poison(100, model.facts.hidden_size);
  for (int64_t r = 0; r < 100; ++r) {
    for (Bf16& element : poison.rows().span(r)) element = Bf16{0x7FC0};
  }
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  const RowBatch<Bf16> expected = RunInChunks(*pipeline, SessionId(1), rows.rows(), 41, 40);
  pipeline->EndSession(SessionId(1));

  RunStep(*pipeline, SessionId(1), rows.rows(), 0, 40, 40);
  const StepPlan plan{.sessions = {{.session = SessionId(1),
                                    .num_rows = 60,
                                    .position_begin = 40,
                                    .prompt_length = 40}},
                      .num_rows = 60};
  RowBatch<Bf16> out(60, model.facts.hidden_size);
  ASSERT_TRUE(pipeline->BeginStep(plan).ok());
  ASSERT_TRUE(pipeline->RunLayer(0, poison.rows().Slice(40, 100), out.rows()).ok());
  pipeline->AbortStep();
  const RowBatch<Bf16> found = RunStep(*pipeline, SessionId(1), rows.rows(), 40, 41, 40);
  EXPECT_EQ(FirstDifference(expected.rows().Slice(40, 41), found.rows()), "");
}

// Generated rows of more heads than one task takes, the last group with fewer.
TEST(ManyHeadsTest, EqualTheScalarReferenceForEveryTier) {
  const AttentionCase model = MakeAttentionCase("mla_many_heads", 64);
  const RowBatch<Bf16> rows = MakeRows(7, 100, model.facts.hidden_size);
  const RowBatch<Bf16> expected = ReferenceOutput(model, rows.rows(), 90);
  for (const Tier tier : HostTiers()) {
    Executor executor(3);
    const auto pipeline = MakePipeline(model, *FindKernels(tier), executor);
    for (const int64_t chunk : {100, 1}) {
      const RowBatch<Bf16> found = RunInChunks(*pipeline, SessionId(1), rows.rows(), chunk, 90);
      EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "") << TierName(tier);
      pipeline->EndSession(SessionId(1));
    }
  }
}

// More spans behind a generated row than leave the latents' space together, in one task and in
// several.
TEST(ManySpansTest, EqualTheScalarReferenceInTheAbsorbedForm) {
  const AttentionCase model = MakeAttentionCase("mla", 32);
  constexpr int64_t kPrompt = 20 * 32;
  const RowBatch<Bf16> rows = MakeRows(7, kPrompt + 3, model.facts.hidden_size);
  const RowBatch<Bf16> expected = ReferenceOutput(model, rows.rows(), kPrompt);
  for (const int threads : {1, 3}) {
    Executor executor(threads);
    const auto pipeline = MakePipeline(model, BestKernels(), executor);
    const RowBatch<Bf16> found =
        RunInChunks(*pipeline, SessionId(1), rows.rows(), kPrompt, kPrompt);
    EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "") << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionBitsTest, ::testing::ValuesIn(AttentionCaseNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace moebius
