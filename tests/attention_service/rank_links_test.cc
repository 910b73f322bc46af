// SPDX-License-Identifier: Apache-2.0
// Ranks over a real transport whose windows are smaller than their messages: no step hangs, and no
// bit is another one. Credit that goes round in a circle needs three ranks to show.
#include "tests/attention_service/rank_links.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/attention_service/attention_fixture.h"

namespace moebius::testing {
namespace {

constexpr int64_t kSpan = 128;
constexpr int64_t kPrompt = 1500;  // twelve spans, the last one open
constexpr int64_t kLength = 1506;
constexpr uint64_t kFrameBytes = 4 << 10;
constexpr SessionId kSession{5};

// The second layer's rows of one session's next positions, in steps that end there.
void RunSteps(RankWorld& world, Bf16Rows rows, int64_t begin, const std::vector<int64_t>& ends,
              RowBatch<Bf16>& out) {
  for (const int64_t end : ends) {
    const StepPlan plan{.step = static_cast<uint64_t>(end),
                        .sessions = {{.session = kSession,
                                      .num_rows = end - begin,
                                      .position_begin = begin,
                                      .prompt_length = kPrompt}},
                        .num_rows = end - begin};
    absl::Status status = world.port().BeginStep(plan);
    for (int32_t layer = 0; layer < 2 && status.ok(); ++layer) {
      status = world.port().RunLayer(LayerId(layer), rows.Slice(begin, end),
                                     out.rows().Slice(begin, end));
    }
    if (status.ok()) status = world.port().CommitStep();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return;
    begin = end;
  }
}

// Of the answers so far, on average: the largest is larger still.
uint64_t AnswerBytes(RankWorld& world) {
  int64_t answers = 0;
  int64_t bytes = 0;
  for (int32_t rank = 0; rank < world.num_ranks(); ++rank) {
    const ExchangeFigures figures = world.rank(rank).rank().figures().exchange;
    answers += figures.answers;
    bytes += figures.answer_bytes;
  }
  return static_cast<uint64_t>(bytes / std::max<int64_t>(1, answers));
}

// A prompt in two chunks, and some generated rows.
RowBatch<Bf16> RunAll(RankWorld& world, Bf16Rows rows, const std::string& what) {
  RowBatch<Bf16> out(rows.num_rows, rows.width);
  RunSteps(world, rows, 0, {600, kPrompt}, out);
  EXPECT_GT(AnswerBytes(world), WindowBytesOf(kFrameBytes)) << what;
  RunSteps(world, rows, kPrompt, {kPrompt + 1, kLength}, out);
  return out;
}

std::vector<AttentionMethod> MethodsOf(int32_t num_ranks) {
  std::vector<AttentionMethod> methods{AttentionMethod::kAllGather, AttentionMethod::kRingPassKv,
                                       AttentionMethod::kRingPassQ, AttentionMethod::kUlysses};
  if (num_ranks % 2 == 0) methods.push_back(AttentionMethod::k2d);
  return methods;
}

AttentionCase MakeCase(const std::string& name, AttentionSum sum) {
  AttentionCase model = MakeAttentionCase(name, kSpan);
  model.facts.sum = sum;
  return model;
}

TEST_P(RankLinksTest, EveryMethodGivesTheBitsOfOneRankThroughWindowsSmallerThanAMessage) {
  for (const std::string name : {"gqa", "mla"}) {
    const AttentionCase model = MakeCase(name, AttentionSum::kCanonical);
    const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
    Executor executor(2);
    const auto alone = MakePipeline(model, BestKernels(), executor);
    const RowBatch<Bf16> expected =
        testing::RunStep(*alone, kSession, rows.rows(), 0, kLength, kPrompt, 1);
    for (const int32_t num_ranks : {3, 4}) {
      for (const AttentionMethod method : MethodsOf(num_ranks)) {
        RankWorld world(model, num_ranks, method,
                        {.make = GetParam().make, .frame_bytes = kFrameBytes});
        const std::string what =
            absl::StrCat(name, ", ", AttentionMethodName(method), ", ", num_ranks, " ranks");
        const RowBatch<Bf16> found = RunAll(world, rows.rows(), what);
        EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "") << what;
      }
    }
  }
}

TEST_P(RankLinksTest, ThePerDegreeSumHasTheBitsThatItHasOverLoopback) {
  const std::pair<std::string, AttentionLayout> cases[] = {{"gqa", AttentionLayout::kZigzag},
                                                           {"mla", AttentionLayout::kZigzag},
                                                           {"gqa", AttentionLayout::kContiguous},
                                                           {"mla", AttentionLayout::kStriped}};
  for (const auto& [name, layout] : cases) {
    AttentionCase model = MakeCase(name, AttentionSum::kPerDegree);
    model.facts.layout = layout;
    const RowBatch<Bf16> rows = MakeRows(3, kLength, model.facts.hidden_size);
    for (const int32_t num_ranks : {3, 4}) {
      for (const AttentionMethod method : MethodsOf(num_ranks)) {
        RankWorld loopback(model, num_ranks, method, {.frame_bytes = kFrameBytes});
        RankWorld world(model, num_ranks, method,
                        {.make = GetParam().make, .frame_bytes = kFrameBytes});
        const std::string what =
            absl::StrCat(name, ", ", AttentionMethodName(method), ", ", num_ranks, " ranks");
        const RowBatch<Bf16> expected = RunAll(loopback, rows.rows(), what);
        const RowBatch<Bf16> found = RunAll(world, rows.rows(), what);
        EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "") << what;
      }
    }
  }
}

}  // namespace
}  // namespace moebius::testing
