// SPDX-License-Identifier: Apache-2.0
// The per-degree sum over N ranks: near the definition in fp64 for every N, method and layout, the
// same bits on repeat, whatever the chunks and the company, and two live buffers.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/attention_service/double_reference.h"
#include "tests/attention_service/local_ranks.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::FirstDifference;
using testing::HeadError;
using testing::LocalRanks;
using testing::MakeCaseWithOpenHeads;
using testing::MakeTestSession;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;

constexpr int64_t kSpan = 32;
constexpr int32_t kRanks[] = {1, 2, 3, 4, 5, 8};

using Case = std::tuple<std::string, AttentionLayout>;

// Zigzag with one block in a span, the others with two.
AttentionCase MakeCase(const std::string& name, AttentionLayout layout = AttentionLayout::kZigzag) {
  const bool is_zigzag = layout == AttentionLayout::kZigzag;
  AttentionCase model = MakeCaseWithOpenHeads(name, is_zigzag ? kSpan : 2 * kSpan);
  model.facts.key_block = kSpan;
  model.facts.sum = AttentionSum::kPerDegree;
  model.facts.layout = layout;
  return model;
}
AttentionCase MakeCase(const Case& of) { return MakeCase(std::get<0>(of), std::get<1>(of)); }

double LargestDifference(Bf16Rows a, Bf16Rows b) {
  double largest = 0;
  for (int64_t r = 0; r < a.num_rows; ++r) {
    for (int64_t c = 0; c < a.width; ++c) {
      largest = std::max(largest, std::abs(double{ToFloat(a.row(r)[c])} - ToFloat(b.row(r)[c])));
    }
  }
  return largest;
}

class PerDegreeTest : public ::testing::TestWithParam<Case> {};

// With and without keys that were there before; some prompts are many units of 2N spans, others
// less than one.
TEST_P(PerDegreeTest, StaysWithinTwiceTheOnePassErrorForEveryNumberOfRanks) {
  const AttentionCase model = MakeCase(GetParam());
  for (const int32_t num_ranks : kRanks) {
    LocalRanks ranks(model, num_ranks);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{290}, std::vector<int64_t>{101, 64, 1, 300}}) {
      const TestSession session = MakeTestSession(1, 290, 290, model.facts.hidden_size);
      const RowBatch<Bf16> found =
          RunAll(*ranks.group, MakeTestSession(1, 290, 290, model.facts.hidden_size), chunks);
      const HeadError error =
          testing::CompareHeadsWithDouble(model, session.rows.rows(), found.rows());
      EXPECT_LE(error.max_error, error.bound()) << num_ranks << " ranks";
      EXPECT_GT(error.max_value, 0.5);
    }
  }
}

TEST_P(PerDegreeTest, StaysWithinItInWindows) {
  AttentionCase model = MakeCase(GetParam());
  for (const int64_t size : {int64_t{1}, int64_t{3}, kSpan + 1, 3 * kSpan + 5}) {
    model.facts.config.windows = {size, 0};
    for (const int32_t num_ranks : {1, 3, 4}) {
      LocalRanks ranks(model, num_ranks);
      const TestSession session = MakeTestSession(2, 290, 290, model.facts.hidden_size);
      const RowBatch<Bf16> found =
          RunAll(*ranks.group, MakeTestSession(2, 290, 290, model.facts.hidden_size), {130, 160});
      const HeadError error =
          testing::CompareHeadsWithDouble(model, session.rows.rows(), found.rows());
      EXPECT_LE(error.max_error, error.bound()) << num_ranks << " ranks, window " << size;
    }
  }
}

// Windows of a few keys over shards of a few rows: a prompt of 4N rows gives each rank two chunks
// of two, one of 8N two of four, so windows end inside of chunks, at their edges and in a
// neighbour's. Behind it rows that are generated.
TEST_P(PerDegreeTest, StaysWithinItInWindowsOfThreeKeysOverShardsOfFourRows) {
  AttentionCase model = MakeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  for (const int64_t size : {1, 3, 4, 5}) {
    model.facts.config.windows = {size, 0};
    AttentionCase canonical = MakeCase(GetParam());
    canonical.facts.config.windows = {size, 0};
    canonical.facts.sum = AttentionSum::kCanonical;
    LocalRanks alone(canonical, 1);
    for (const int32_t num_ranks : {2, 3, 4, 8}) {
      LocalRanks ranks(model, num_ranks);
      for (const int64_t prompt : {4 * num_ranks, 8 * num_ranks, 8 * num_ranks - 3}) {
        const TestSession session = MakeTestSession(6, prompt + 5, prompt, width);
        const RowBatch<Bf16> expected =
            RunAll(*alone.group, MakeTestSession(6, prompt + 5, prompt, width), {1000});
        for (const AttentionMethod method : kAttentionMethods) {
          const bool is_2d = method == AttentionMethod::k2d;
          if (method == AttentionMethod::kLocal || (is_2d && num_ranks % 4 != 0)) continue;
          TestSession again = MakeTestSession(6, prompt + 5, prompt, width);
          again.method = method;
          if (method == AttentionMethod::kUlysses) again.ulysses_ranks = num_ranks;
          if (is_2d) again.ulysses_ranks = 2;
          const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(again), {5, prompt - 5, 1});
          const auto what = [&] {
            return absl::StrCat("window ", size, ", ", AttentionMethodName(method), " over ",
                                num_ranks, " ranks, a prompt of ", prompt);
          };
          const HeadError error =
              testing::CompareHeadsWithDouble(model, session.rows.rows().Slice(0, prompt),
                                              found.rows().Slice(0, prompt), /*stride=*/1);
          EXPECT_LE(error.max_error, error.bound()) << what();
          EXPECT_LE(LargestDifference(expected.rows(), found.rows()), 2 * error.bound()) << what();
        }
      }
    }
  }
}

TEST_P(PerDegreeTest, StaysWithinItForEveryMethod) {
  const AttentionCase model = MakeCase(GetParam());
  constexpr int32_t kNumRanks = 4;
  for (const AttentionMethod method : kAttentionMethods) {
    if (method == AttentionMethod::kLocal) continue;
    LocalRanks ranks(model, kNumRanks);
    TestSession session = MakeTestSession(1, 330, 330, model.facts.hidden_size);
    TestSession again = MakeTestSession(1, 330, 330, model.facts.hidden_size);
    again.method = method;
    if (method == AttentionMethod::kUlysses) again.ulysses_ranks = kNumRanks;
    if (method == AttentionMethod::k2d) again.ulysses_ranks = 2;
    const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(again), {200, 130});
    const HeadError error =
        testing::CompareHeadsWithDouble(model, session.rows.rows(), found.rows());
    EXPECT_LE(error.max_error, error.bound()) << AttentionMethodName(method);
  }
}

// Prompts of every length and some generated rows, all in one step and each alone in chunks.
TEST_P(PerDegreeTest, HasTheSameBitsWhateverTheChunksAndTheCompany) {
  const AttentionCase model = MakeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  for (const int32_t num_ranks : kRanks) {
    const std::vector<int64_t> prompts{0, 1, 2, 3, 7, 2 * num_ranks - 1, 31, 33, 66, 260};
    LocalRanks ranks(model, num_ranks);
    std::vector<TestSession> sessions;
    std::vector<TestSession*> pointers;
    for (size_t i = 0; i < prompts.size(); ++i) {
      sessions.push_back(MakeTestSession(i, prompts[i] + 5, prompts[i], width));
    }
    for (TestSession& session : sessions) pointers.push_back(&session);
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), 1000));
    for (const TestSession& session : sessions) ranks.group->EndSession(session.id);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const RowBatch<Bf16> alone =
          RunAll(*ranks.group, MakeTestSession(i, prompts[i] + 5, prompts[i], width), {29, 3, 90});
      EXPECT_EQ(FirstDifference(sessions[i].out.rows(), alone.rows()), "")
          << num_ranks << " ranks, a prompt of " << prompts[i];
    }
  }
}

// Sessions begin at ranks of their own, by their ids. With heads they all begin at rank 0.
TEST_P(PerDegreeTest, HasTheSameBitsWhereverASessionBegins) {
  const AttentionCase model = MakeCase(GetParam());
  for (const int32_t num_ranks : {2, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    for (const AttentionMethod method :
         {AttentionMethod::kRingPassKv, AttentionMethod::kRingPassQ, AttentionMethod::kAllGather}) {
      std::vector<TestSession> sessions;
      std::vector<TestSession*> pointers;
      for (int32_t first_rank = 0; first_rank < num_ranks; ++first_rank) {
        sessions.push_back(MakeTestSession(7, 213, 210, model.facts.hidden_size));
        TestSession& session = sessions.back();
        session.id = SessionId(100 + static_cast<uint64_t>(first_rank));
        session.first_rank = first_rank;
        session.method = method;
      }
      for (TestSession& session : sessions) pointers.push_back(&session);
      for (const int64_t rows : {90, 120, 3}) {
        RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), rows));
      }
      for (const TestSession& session : sessions) {
        EXPECT_EQ(FirstDifference(sessions[0].out.rows(), session.out.rows()), "")
            << AttentionMethodName(method) << " over " << num_ranks << " ranks from rank "
            << session.first_rank;
        ranks.group->EndSession(session.id);
      }
    }
  }
}

TEST_P(PerDegreeTest, IsNearTheCanonicalSumInDecodeAndDependsOnTheRanks) {
  AttentionCase canonical = MakeCase(GetParam());
  canonical.facts.sum = AttentionSum::kCanonical;
  const AttentionCase model = MakeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  LocalRanks alone(canonical, 1);
  const RowBatch<Bf16> expected =
      RunAll(*alone.group, MakeTestSession(3, 400, 170, width), {170, 1});
  double largest = 0;
  for (int64_t r = 0; r < 400; ++r) {
    for (const Bf16 element : expected.rows().span(r)) {
      largest = std::max(largest, std::abs(double{ToFloat(element)}));
    }
  }
  bool differs = false;
  for (const int32_t num_ranks : {1, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    const RowBatch<Bf16> found =
        RunAll(*ranks.group, MakeTestSession(3, 400, 170, width), {170, 1});
    EXPECT_LE(LargestDifference(expected.rows(), found.rows()), 4 * 0x1p-9 * largest)
        << num_ranks << " ranks";
    const RowBatch<Bf16> again =
        RunAll(*ranks.group, MakeTestSession(3, 400, 170, width), {170, 1});
    EXPECT_EQ(FirstDifference(found.rows(), again.rows()), "") << num_ranks << " ranks";
    differs = differs || !FirstDifference(expected.rows(), found.rows()).empty();
  }
  EXPECT_TRUE(differs);  // else the setting was ignored
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", AttentionLayoutName(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Cases, PerDegreeTest,
                         ::testing::Combine(::testing::Values("gqa", "mqa", "mha", "mla",
                                                              "mla_yarn"),
                                            ::testing::Values(AttentionLayout::kZigzag)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Layouts, PerDegreeTest,
                         ::testing::Combine(::testing::Values("gqa", "mla"),
                                            ::testing::Values(AttentionLayout::kContiguous,
                                                              AttentionLayout::kStriped)),
                         NameOf);

// Every score is the same and a value says which key it is of, modulo its width, so that a row
// counts the keys of each residue: one that is dropped, met twice or met by the wrong row is seen.
TEST(PerDegreePositionTest, EveryRowMeetsEveryKeyBeforeItOnce) {
  constexpr int64_t kLength = 280;
  for (const AttentionLayout layout : kAttentionLayouts) {
    AttentionCase model = MakeCase("gqa", layout);
    const int64_t width = model.facts.hidden_size;
    const AttentionConfig& config = model.facts.config;
    for (AttentionLayerWeights& layer : model.layers) {
      for (RowBatch<Bf16>* matrix : {&layer.q.bf16(), &layer.k.bf16(), &layer.v.bf16()}) {
        const MutableBf16Rows rows = matrix->rows();
        for (int64_t r = 0; r < rows.num_rows; ++r) std::fill_n(rows.row(r), width, Bf16{});
      }
      // A value is the row's first elements.
      for (int64_t r = 0; r < layer.v.bf16().num_rows(); ++r) {
        layer.v.bf16().rows().row(r)[r % config.v_head_dim] = ToBf16(1.0f);
      }
    }
    for (const int32_t num_ranks : kRanks) {
      LocalRanks ranks(model, num_ranks);
      for (const AttentionMethod method : kAttentionMethods) {
        const bool is_2d = method == AttentionMethod::k2d;
        if (method == AttentionMethod::kLocal || (is_2d && num_ranks % 4 != 0)) continue;
        TestSession session = MakeTestSession(1, kLength, kLength - 30, width);
        session.method = method;
        if (method == AttentionMethod::kUlysses) session.ulysses_ranks = num_ranks;
        if (is_2d) session.ulysses_ranks = 2;
        for (int64_t p = 0; p < kLength; ++p) {
          Bf16* row = session.rows.rows().row(p);
          std::fill_n(row, width, Bf16{});
          row[p % config.v_head_dim] = ToBf16(1.0f);
        }
        const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(session), {100, 77, 150});
        std::vector<double> counts(static_cast<size_t>(config.v_head_dim));
        for (int64_t p = 0; p < kLength; ++p) {
          ++counts[static_cast<size_t>(p % config.v_head_dim)];
          for (int64_t c = 0; c < width; ++c) {
            // The sum is exact and the quotient rounded to bf16; a key is a twelfth and more.
            const double mean =
                counts[static_cast<size_t>(c % config.v_head_dim)] / static_cast<double>(p + 1);
            ASSERT_NEAR(ToFloat(found.rows().row(p)[c]), mean, 0x1p-8 * mean)
                << AttentionLayoutName(layout) << ", " << AttentionMethodName(method) << " over "
                << num_ranks << " ranks, row " << p;
          }
        }
      }
    }
  }
}

// A shard of a prompt of so many positions is one span, of a whole contiguous unit, or a block.
TEST(PerDegreeFiguresTest, HoldTwoBuffersUnderEveryLayout) {
  for (const AttentionLayout layout : {AttentionLayout::kContiguous, AttentionLayout::kStriped}) {
    const AttentionCase model = MakeCase("gqa", layout);
    const bool is_striped = layout == AttentionLayout::kStriped;
    for (const int32_t num_ranks : {2, 3, 5, 8}) {
      LocalRanks ranks(model, num_ranks);
      const int64_t length =
          num_ranks * (is_striped ? model.facts.key_block : model.facts.span) - 3;
      RunAll(*ranks.group, MakeTestSession(1, length, length, model.facts.hidden_size), {length});
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const ShardFigures figures = ranks.group->rank(rank).shard_figures();
        EXPECT_EQ(figures.rounds, num_ranks);
        EXPECT_LE(figures.max_foreign_spans, 2);
        EXPECT_EQ(figures.spans_received, num_ranks - 1);
      }
    }
  }
}

// A shard of a prompt of one unit is two spans.
TEST(PerDegreeFiguresTest, HoldTwoBuffersWhateverTheNumberOfRanks) {
  const AttentionCase model = MakeCase("gqa");
  for (const int32_t num_ranks : {2, 3, 5, 8}) {
    LocalRanks ranks(model, num_ranks);
    const int64_t length = 2 * num_ranks * kSpan - 3;
    RunAll(*ranks.group, MakeTestSession(1, length, length, model.facts.hidden_size), {length});
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const ShardFigures figures = ranks.group->rank(rank).shard_figures();
      EXPECT_EQ(figures.rounds, num_ranks);  // one of them is the rank's own
      EXPECT_LE(figures.max_foreign_spans, 4);
      EXPECT_EQ(figures.spans_received, 2 * (num_ranks - 1));
    }
  }
}

TEST(PerDegreeFiguresTest, ReturnOneStateOfEachRankForAGeneratedRow) {
  const AttentionCase model = MakeCase("gqa");
  for (const int32_t num_ranks : {2, 3, 5}) {
    LocalRanks ranks(model, num_ranks);
    TestSession session = MakeTestSession(0, 701, 700, model.facts.hidden_size);
    RunTestStep(*ranks.group, {&session}, {700});
    RunTestStep(*ranks.group, {&session}, {1});
    int64_t states = 0;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      states += ranks.group->rank(rank).shard_figures().states_received;
    }
    EXPECT_EQ(states, model.facts.config.num_query_heads * (num_ranks - 1));
  }
}

// No rank holds more than two blocks above its share, and all is given back.
TEST(PerDegreeFiguresTest, KeepTheShareOfEachRankAndGiveItBack) {
  for (const AttentionLayout layout : kAttentionLayouts) {
    const AttentionCase model = MakeCase("mqa", layout);
    for (const int32_t num_ranks : {2, 3, 4, 8}) {
      LocalRanks ranks(model, num_ranks);
      for (const int64_t prompt : {1, 2, 5, 31, 32, 33, 100, 255, 256, 257, 300}) {
        for (const int64_t length : {prompt, prompt + 1, prompt + 40, prompt + 200}) {
          TestSession session = MakeTestSession(static_cast<uint64_t>(prompt), length, prompt,
                                                model.facts.hidden_size);
          RunTestStep(*ranks.group, {&session}, {length});
          const int64_t unit = num_ranks * model.facts.span;
          const int64_t share =
              (length + unit - 1) / unit * (model.facts.span / model.facts.key_block);
          for (int32_t rank = 0; rank < num_ranks; ++rank) {
            EXPECT_LE(ranks.group->rank(rank).usage().used_blocks, share + 2)
                << AttentionLayoutName(layout) << ", " << num_ranks << " ranks, " << prompt
                << " of " << length;
          }
          ranks.group->EndSession(session.id);
          for (int32_t rank = 0; rank < num_ranks; ++rank) {
            EXPECT_EQ(ranks.group->rank(rank).usage().used_blocks, 0);
          }
        }
      }
    }
  }
}

// A step that is given up leaves nothing behind: the next one has the same bits.
TEST(PerDegreeFiguresTest, ForgetAStepThatWasGivenUp) {
  const AttentionCase model = MakeCase("mha");
  const int64_t width = model.facts.hidden_size;
  LocalRanks ranks(model, 3);
  const RowBatch<Bf16> expected = RunAll(*ranks.group, MakeTestSession(4, 150, 140, width), {70});
  TestSession session = MakeTestSession(4, 150, 140, width);
  RunTestStep(*ranks.group, {&session}, {70});
  std::vector<int64_t> used;
  for (int32_t rank = 0; rank < 3; ++rank) {
    used.push_back(ranks.group->rank(rank).usage().used_blocks);
    const StepPlan plan{.step = 5000000,
                        .sessions = {{.session = session.id,
                                      .num_rows = 60,
                                      .position_begin = 70,
                                      .prompt_length = 140,
                                      .first_rank = session.first_rank}},
                        .num_rows = 60};
    ASSERT_TRUE(ranks.group->rank(rank).BeginStep(plan).ok());
    ranks.group->rank(rank).AbortStep();
    EXPECT_EQ(ranks.group->rank(rank).usage().used_blocks, used.back());
  }
  while (session.length < 150) RunTestStep(*ranks.group, {&session}, {70});
  EXPECT_EQ(FirstDifference(expected.rows(), session.out.rows()), "");
}

TEST(PerDegreeFailureTest, NamesTheRankThatDied) {
  const AttentionCase model = MakeCase("mla");
  LocalRanks ranks(model, 3);
  TestSession session = MakeTestSession(0, 400, 390, model.facts.hidden_size);
  RunTestStep(*ranks.group, {&session}, {300});
  ranks.exchange.Fail(1, absl::UnavailableError("attention-1 died"));
  const StepPlan plan{.step = 6000000,
                      .sessions = {{.session = session.id,
                                    .num_rows = 90,
                                    .position_begin = 300,
                                    .prompt_length = 390}},
                      .num_rows = 90};
  RowBatch<Bf16> rows(90, model.facts.hidden_size);
  const auto statuses = ranks.group->RunStep(plan, rows.rows(), rows.rows());
  EXPECT_TRUE(std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& status) {
    return absl::IsUnavailable(status) && status.message() == "attention-1 died";
  }));
}

}  // namespace
}  // namespace moebius
