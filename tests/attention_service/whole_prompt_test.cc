// SPDX-License-Identifier: Apache-2.0
// Attention that is not causal: rows of a prompt see all of it, generated rows what is before them.
// Near the definition in fp64 for every method, layout, number of ranks and length; under the
// canonical sum the bits of one rank.
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/attention_service/double_reference.h"
#include "tests/attention_service/local_ranks.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::FirstDifference;
using testing::HeadError;
using testing::LocalRanks;
using testing::MakeTestSession;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;
using testing::Way;
using testing::WaysOf;

constexpr int64_t kSpan = 64;      // two key blocks
constexpr int64_t kGenerated = 3;  // rows behind each prompt

/// "canonical", or the layout of the per-degree sum.
AttentionCase MakeWholeCase(const std::string& name, const std::string& sum) {
  AttentionCase model = testing::MakeCaseWithOpenHeads(name, kSpan);
  model.facts.key_block = kSpan / 2;
  model.facts.config.is_causal = false;
  if (sum == "canonical") return model;
  model.facts.sum = AttentionSum::kPerDegree;
  model.facts.layout = *ParseAttentionLayout(sum);
  return model;
}

// Prompts shorter than the ranks, at spans' ends and, of two ranks, of two rounds.
std::vector<int64_t> PromptsOf(int32_t num_ranks) {
  return {1, 2, 3, 7, 2 * num_ranks - 1, kSpan, kSpan + 1, 4 * kSpan + 5};
}

TestSession MakeWholeSession(uint64_t id, int64_t prompt, int64_t width, Way way) {
  TestSession session = MakeTestSession(id, prompt + kGenerated, prompt, width);
  session.method = way.method;
  session.ulysses_ranks = way.ulysses_ranks;
  return session;
}

// All prompts whole in one step, then generated rows one by one. Ends the sessions.
std::vector<TestSession> RunPacked(LocalRanks& ranks, const std::vector<int64_t>& prompts,
                                   int64_t width, Way way) {
  std::vector<TestSession> sessions;
  std::vector<TestSession*> pointers;
  for (const int64_t prompt : prompts) {
    sessions.push_back(MakeWholeSession(sessions.size(), prompt, width, way));
  }
  for (TestSession& session : sessions) pointers.push_back(&session);
  RunTestStep(*ranks.group, pointers, prompts);
  for (int64_t row = 0; row < kGenerated; ++row) {
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), 1));
  }
  for (const TestSession& session : sessions) ranks.group->EndSession(session.id);
  return sessions;
}

// A name of AttentionCaseNames, and a sum.
class WholePromptTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  AttentionCase model() const { return MakeWholeCase(std::get<0>(GetParam()), sum()); }
  std::string sum() const { return std::get<1>(GetParam()); }
};

// Every document of a step sees its own prompt and no other's.
TEST_P(WholePromptTest, StaysWithinTheOnePassErrorForEveryMethodAndNumberOfRanks) {
  const AttentionCase model = this->model();
  const int64_t width = model.facts.hidden_size;
  // The absorbed form rounds otherwise; its bits are those of one rank below.
  const bool is_latent = model.facts.config.mla.has_value();
  std::vector<TestSession> measured;  // outputs that are so near
  for (const int32_t num_ranks : {1, 2, 3, 4, 5, 8}) {
    LocalRanks ranks(model, num_ranks);
    for (const Way& way : WaysOf(num_ranks)) {
      for (TestSession& session : RunPacked(ranks, PromptsOf(num_ranks), width, way)) {
        const bool is_known =
            std::any_of(measured.begin(), measured.end(), [&](const TestSession& known) {
              return known.id == session.id && known.prompt_length == session.prompt_length &&
                     FirstDifference(known.out.rows(), session.out.rows()).empty();
            });
        if (is_known) continue;
        const int64_t num_rows = session.prompt_length + (is_latent ? 0 : kGenerated);
        const HeadError error = testing::CompareHeadsWithDouble(
            model, session.rows.rows().Slice(0, num_rows), session.out.rows().Slice(0, num_rows),
            /*stride=*/29, session.prompt_length);
        EXPECT_LE(error.max_error, error.bound_of_means())
            << AttentionMethodName(way.method) << " over " << num_ranks << " ranks in groups of "
            << way.ulysses_ranks << ", a prompt of " << session.prompt_length;
        measured.push_back(std::move(session));
      }
    }
  }
}

// What a replay after a loss does: the prompt and rows that were generated in one step.
TEST_P(WholePromptTest, ReadsThePromptAndGeneratedRowsAgainInOneStepWithTheSameBits) {
  const AttentionCase model = this->model();
  const int64_t width = model.facts.hidden_size;
  for (const int32_t num_ranks : {1, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    for (const Way& way : WaysOf(num_ranks)) {
      const std::vector<int64_t> prompts = PromptsOf(num_ranks);
      const std::vector<TestSession> packed = RunPacked(ranks, prompts, width, way);
      for (size_t i = 0; i < prompts.size(); ++i) {
        const RowBatch<Bf16> again =
            RunAll(*ranks.group, MakeWholeSession(i, prompts[i], width, way), {1000});
        EXPECT_EQ(FirstDifference(packed[i].out.rows(), again.rows()), "")
            << AttentionMethodName(way.method) << " over " << num_ranks << " ranks, a prompt of "
            << prompts[i];
      }
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Cases, WholePromptTest,
                         ::testing::Combine(::testing::ValuesIn(testing::AttentionCaseNames()),
                                            ::testing::Values("canonical", "zigzag")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Layouts, WholePromptTest,
                         ::testing::Combine(::testing::Values("gqa", "mla"),
                                            ::testing::Values("contiguous", "striped")),
                         NameOf);

class WholePromptBitsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(WholePromptBitsTest, AreThoseOfOneRankForEveryMethodAndNumberOfRanks) {
  const AttentionCase model = MakeWholeCase(GetParam(), "canonical");
  const int64_t width = model.facts.hidden_size;
  LocalRanks alone(model, 1);
  for (int32_t num_ranks = 2; num_ranks <= 8; ++num_ranks) {
    std::vector<int64_t> prompts = PromptsOf(num_ranks);
    if (num_ranks <= 4) prompts.push_back(2 * num_ranks * kSpan + 5);  // two rounds
    const std::vector<TestSession> expected =
        RunPacked(alone, prompts, width, {AttentionMethod::kLocal});
    LocalRanks ranks(model, num_ranks);
    for (const Way& way : WaysOf(num_ranks)) {
      const std::vector<TestSession> found = RunPacked(ranks, prompts, width, way);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(FirstDifference(expected[i].out.rows(), found[i].out.rows()), "")
            << AttentionMethodName(way.method) << " over " << num_ranks << " ranks in groups of "
            << way.ulysses_ranks << ", a prompt of " << prompts[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, WholePromptBitsTest,
                         ::testing::ValuesIn(testing::AttentionCaseNames()),
                         [](const auto& info) { return info.param; });

// Grouped heads without norms and rotation, that read keys, queries and values from elements of the
// row as they are.
AttentionCase MakeCodedCase(const std::string& sum) {
  AttentionCase model = MakeWholeCase("gqa", sum);
  model.facts.span = kSpan / 2;  // two rounds of two ranks
  AttentionConfig& config = model.facts.config;
  config.qk_norm = QkNorm::kNone;
  config.rope.dim = 0;
  config.softmax_scale = 1;
  const int64_t d = config.qk_head_dim;
  for (AttentionLayerWeights& layer : model.layers) {
    layer.q_norm = RowBatch<Bf16>();
    layer.k_norm = RowBatch<Bf16>();
    const auto read = [&](RowBatch<Bf16>& matrix, int64_t from, int64_t step) {
      for (int64_t r = 0; r < matrix.num_rows(); ++r) {
        std::fill_n(matrix.rows().row(r), matrix.width(), Bf16{});
        matrix.rows().row(r)[from + r % d * step] = ToBf16(1.0f);
      }
    };
    read(layer.k.bf16(), 0, 1);
    read(layer.q.bf16(), d, 1);
    read(layer.v.bf16(), 2 * d, 0);
  }
  return model;
}

// Only one key meets a row's query, and its value says which key it is: the row p of a prompt of T
// looks for the key T - 1 - p, behind it in the first half.
TEST(WholePromptValuesTest, EveryRowFindsTheKeyThatItLooksFor) {
  constexpr int64_t kPrompt = 143;  // two digits of 12
  for (const char* sum : {"canonical", "zigzag", "contiguous", "striped"}) {
    const AttentionCase model = MakeCodedCase(sum);
    const int64_t d = model.facts.config.qk_head_dim;
    for (const int32_t num_ranks : {1, 2, 3, 4, 8}) {
      LocalRanks ranks(model, num_ranks);
      for (const Way& way : WaysOf(num_ranks)) {
        TestSession session = MakeTestSession(1, kPrompt, kPrompt, model.facts.hidden_size);
        session.method = way.method;
        session.ulysses_ranks = way.ulysses_ranks;
        for (int64_t p = 0; p < kPrompt; ++p) {
          const absl::Span<Bf16> row = session.rows.rows().span(p);
          std::fill(row.begin(), row.end(), Bf16{});
          const int64_t target = kPrompt - 1 - p;
          const auto mark = [&](int64_t from, int64_t number, float size) {
            row[static_cast<size_t>(from + number % 12)] = ToBf16(size);
            row[static_cast<size_t>(from + 12 + number / 12)] = ToBf16(size);
          };
          mark(0, p, 4.0f);
          mark(d, target, 16.0f);
          row[static_cast<size_t>(2 * d)] = ToBf16(static_cast<float>(p + 1));
        }
        const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(session), {kPrompt});
        for (int64_t p = 0; p < kPrompt; ++p) {
          for (const Bf16 element : found.rows().span(p)) {
            ASSERT_EQ(ToFloat(element), static_cast<float>(kPrompt - p))
                << sum << ", " << AttentionMethodName(way.method) << " over " << num_ranks
                << " ranks, row " << p;
          }
        }
      }
    }
  }
}

TEST(WholePromptPlanTest, APartOfAPromptIsRefused) {
  const AttentionCase model = MakeWholeCase("gqa", "canonical");
  LocalRanks alone(model, 1);
  const auto begin = [&](int64_t from, int64_t num_rows, int64_t prompt) {
    const absl::Status status =
        alone.group->rank(0).BeginStep({.step = 9,
                                        .sessions = {{.session = SessionId(1),
                                                      .num_rows = num_rows,
                                                      .position_begin = from,
                                                      .prompt_length = prompt}},
                                        .num_rows = num_rows});
    if (status.ok()) {
      EXPECT_TRUE(alone.group->rank(0).CommitStep().ok());
    }
    return status;
  };
  for (const auto& status : {begin(0, 10, 20), begin(10, 10, 20), begin(10, 20, 20)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("of a prompt of 20"));
  }
  EXPECT_TRUE(begin(0, 23, 20).ok());  // with generated rows
  EXPECT_TRUE(begin(23, 2, 20).ok());  // generated rows in any cuts
}

TEST(WholePromptPlanTest, WindowsAreRefused) {
  AttentionCase model = MakeWholeCase("gqa", "canonical");
  model.facts.config.windows = {5, 0};
  const absl::Status status = ValidateAttentionFacts(model.facts);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("has no windows"));
}

// A rank has all spans of others for its rows, those behind them included, and no more at a time
// than two rounds.
TEST(WholePromptFiguresTest, CountEverySpanOfOthers) {
  AttentionCase model = MakeWholeCase("gqa", "canonical");
  constexpr int64_t kPrompt = 9 * kSpan + 5;
  for (const int32_t num_ranks : {2, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    TestSession session = MakeTestSession(0, kPrompt, kPrompt, model.facts.hidden_size);
    RunTestStep(*ranks.group, {&session}, {kPrompt});
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const ShardFigures figures = ranks.group->rank(rank).shard_figures();
      EXPECT_EQ(figures.spans_received, 10 - NumOwnedSpans({0, 10}, 0, {rank, num_ranks}));
      EXPECT_LE(figures.max_foreign_spans, 4 * num_ranks - 4);
    }
  }
}

}  // namespace
}  // namespace moebius
