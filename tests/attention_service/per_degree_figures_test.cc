// SPDX-License-Identifier: Apache-2.0
// The per-degree sum under each layout, counted: every key once, two live buffers, one state of
// each rank, shares of memory; and what a step that fails leaves.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/attention_service/local_ranks.h"
#include "tests/attention_service/per_degree_case.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::ExpectADeadRankIsNamed;
using testing::FirstDifference;
using testing::kPerDegreeRanks;
using testing::LocalRanks;
using testing::MakePerDegreeCase;
using testing::MakeTestSession;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;

constexpr int64_t kSpan = testing::kPerDegreeBlock;

// Every score is the same and a value says which key it is of, modulo its width, so that a row
// counts the keys of each residue: one that is dropped, met twice or met by the wrong row is seen.
TEST(PerDegreePositionTest, EveryRowMeetsEveryKeyBeforeItOnce) {
  constexpr int64_t kLength = 280;
  for (const AttentionLayout layout : kAttentionLayouts) {
    AttentionCase model = MakePerDegreeCase("gqa", layout);
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
    for (const int32_t num_ranks : kPerDegreeRanks) {
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
    const AttentionCase model = MakePerDegreeCase("gqa", layout);
    const bool is_striped = layout == AttentionLayout::kStriped;
    for (const int32_t num_ranks : {2, 3, 5, 8}) {
      LocalRanks ranks(model, num_ranks);
      const int64_t length =
          num_ranks * (is_striped ? model.facts.key_block : model.facts.span) - 3;
      RunAll(*ranks.group, MakeTestSession(0, length, length, model.facts.hidden_size), {length});
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const ShardFigures figures = ranks.group->rank(rank).shard_figures();
        // The session begins at rank 0, whose rows see keys of no other rank: no round is made.
        EXPECT_EQ(figures.rounds, rank == 0 ? 0 : num_ranks);
        EXPECT_LE(figures.max_foreign_spans, 2);
        EXPECT_EQ(figures.spans_received, rank == 0 ? 0 : num_ranks - 1);
      }
    }
  }
}

// A shard of a prompt of one unit is two spans.
TEST(PerDegreeFiguresTest, HoldTwoBuffersWhateverTheNumberOfRanks) {
  const AttentionCase model = MakePerDegreeCase("gqa");
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
  const AttentionCase model = MakePerDegreeCase("gqa");
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
    const AttentionCase model = MakePerDegreeCase("mqa", layout);
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
  const AttentionCase model = MakePerDegreeCase("mha");
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
  ExpectADeadRankIsNamed(MakePerDegreeCase("mla"));
}

}  // namespace
}  // namespace moebius
