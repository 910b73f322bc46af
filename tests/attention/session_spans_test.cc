// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/session_spans.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/attention/shard.h"
#include "moebius/attention/shard_ranges.h"
#include "moebius/base/random.h"

namespace moebius {
namespace {

constexpr int64_t kSpan = 64;
constexpr int64_t kBlock = 32;

TEST(SessionSpansTest, AreThoseOfTheGeometryInTheCanonicalSum) {
  const SpanGeometry geometry(kSpan, kBlock);
  const SessionSpans spans(geometry, 100);
  for (int64_t position = 0; position < 400; ++position) {
    EXPECT_EQ(spans.SpanOf(position), position / kSpan);
  }
  EXPECT_EQ(spans.SpanPositions(3), (PositionRange{192, 256}));
  EXPECT_EQ(spans.NumSpans(0), 0);
  EXPECT_EQ(spans.NumSpans(65), 2);
}

TEST(SessionSpansTest, RowsOfAPromptThatIsSeenWholeSeeItsEndAndOthersAreCausal) {
  constexpr int64_t kPrompt = 150;
  for (const AttentionSum sum : {AttentionSum::kCanonical, AttentionSum::kPerDegree}) {
    for (const AttentionLayout layout : kAttentionLayouts) {
      const SessionSpans causal(SpanGeometry(kSpan, kBlock, sum, 3, layout), kPrompt);
      const SessionSpans whole(SpanGeometry(kSpan, kBlock, sum, 3, layout, PromptMask::kWhole),
                               kPrompt);
      EXPECT_FALSE(causal == whole);
      for (int64_t position = 0; position < 200; ++position) {
        const int64_t end = position < kPrompt ? kPrompt : position + 1;
        EXPECT_EQ(causal.KeysOf(position, {}), (PositionRange{0, position + 1}));
        EXPECT_EQ(whole.KeysOf(position, {}), (PositionRange{0, end}));
        EXPECT_EQ(causal.EndOfAskedSpans(position), causal.SpanOf(position));
        EXPECT_EQ(whole.EndOfAskedSpans(position),
                  position < kPrompt ? whole.SpanOf(kPrompt - 1) + 1 : whole.SpanOf(position));
        int64_t keys = 0;
        for (int64_t span = 0; span < whole.NumSpans(200); ++span) {
          keys += whole.NumVisibleKeys(span, position, {});
        }
        EXPECT_EQ(keys, end);
      }
    }
  }
}

class LayoutSpansTest : public ::testing::TestWithParam<AttentionLayout> {
 protected:
  static SpanGeometry Geometry(int32_t num_ranks) {
    return {kSpan, kBlock, AttentionSum::kPerDegree, num_ranks, GetParam()};
  }

  // All that follows from where spans begin, for a session of `length` positions.
  static void CheckSpans(const SpanGeometry& geometry, int64_t prompt, int64_t length) {
    const int32_t num_ranks = geometry.num_ranks();
    const SessionSpans spans(geometry, prompt);
    const auto what = [&] {
      return absl::StrCat(num_ranks, " ranks, ", length, " positions with a prompt of ", prompt);
    };
    int64_t next = 0;
    for (int64_t span = 0; next < length; ++span) {
      const PositionRange positions = spans.SpanPositions(span);
      ASSERT_EQ(positions.begin, next) << what();
      ASSERT_GE(positions.size(), 0) << what();
      ASSERT_LE(positions.size(), geometry.max_span()) << what();
      for (int64_t position = positions.begin; position < positions.end; ++position) {
        ASSERT_EQ(spans.SpanOf(position), span) << position << " of " << what();
        ASSERT_EQ(spans.NumSpans(position + 1), span + 1);
      }
      next = positions.end;
    }
    std::vector<int64_t> counts(static_cast<size_t>(num_ranks));
    for (int64_t position = 0; position <= length; ++position) {
      for (int32_t owner = 0; owner < num_ranks; ++owner) {
        const int64_t count = counts[static_cast<size_t>(owner)];
        ASSERT_EQ(spans.NumPositionsOf(owner, position), count) << position << " of " << what();
        // What the shared pool of all ranks takes for granted (SharedKvPool).
        const int64_t share_blocks =
            (position + num_ranks * kSpan - 1) / (num_ranks * kSpan) * (kSpan / kBlock);
        ASSERT_LE((count + kBlock - 1) / kBlock, share_blocks + 2) << position << " of " << what();
      }
      ++counts[static_cast<size_t>(OwnerOfSpan(spans.SpanOf(position), num_ranks))];
    }
  }
};

TEST_P(LayoutSpansTest, HoldEveryPositionOnceInOrderAndKeepTheShares) {
  for (int32_t num_ranks = 1; num_ranks <= 16; ++num_ranks) {
    const int64_t unit = 2 * num_ranks * kSpan;
    for (const int64_t prompt :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{2} * num_ranks - 1,
          unit / 2 - 1, unit / 2, unit / 2 + 1, unit - 1, unit, unit + 1, 2 * unit + 77}) {
      CheckSpans(Geometry(num_ranks), prompt, prompt + 5 * kBlock * num_ranks + 3);
    }
  }
}

TEST_P(LayoutSpansTest, HoldThemForAnyLengths) {
  Random random(20260);
  for (int trial = 0; trial < 100; ++trial) {
    const auto num_ranks = static_cast<int32_t>(1 + random.Below(16));
    const auto prompt = static_cast<int64_t>(random.Below(5 * 16 * kSpan));
    CheckSpans(Geometry(num_ranks), prompt, prompt + static_cast<int64_t>(random.Below(1000)));
  }
}

// A prompt of one unit, as the cost model counts it.
TEST_P(LayoutSpansTest, CutAPromptOfOneUnitAsTheCostModelCounts) {
  for (const int32_t num_ranks : {1, 2, 3, 8, 16}) {
    for (int64_t prompt = 0; prompt < num_ranks * kSpan; prompt += 7) {
      const SessionSpans spans(Geometry(num_ranks), prompt);
      int64_t num_visited = 0;
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        ForEachShardRange(GetParam(), prompt, {rank, num_ranks}, kBlock, [&](PositionRange range) {
          for (int64_t position = range.begin; position < range.end; ++position, ++num_visited) {
            EXPECT_EQ(SpanOwner(spans.SpanOf(position), 0, num_ranks), rank);
          }
        });
      }
      EXPECT_EQ(num_visited, prompt);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutSpansTest, ::testing::ValuesIn(kAttentionLayouts),
                         [](const auto& info) {
                           return std::string(AttentionLayoutName(info.param));
                         });

SessionSpans SpansWith(AttentionLayout layout, int32_t num_ranks, int64_t prompt) {
  return {{kSpan, kBlock, AttentionSum::kPerDegree, num_ranks, layout}, prompt};
}

// The largest causal work of a rank to the mean one, by brute force.
double CausalImbalance(AttentionLayout layout, int32_t num_ranks, int64_t prompt) {
  const SessionSpans spans = SpansWith(layout, num_ranks, prompt);
  std::vector<double> work(static_cast<size_t>(num_ranks));
  double sum = 0;
  for (int64_t position = 0; position < prompt; ++position) {
    const auto owner = static_cast<size_t>(OwnerOfSpan(spans.SpanOf(position), num_ranks));
    work[owner] += static_cast<double>(position + 1);
    sum += static_cast<double>(position + 1);
  }
  return *std::max_element(work.begin(), work.end()) * num_ranks / sum;
}

TEST(SessionSpansTest, PerDegreeLoadsAreThoseOfTheirLayouts) {
  EXPECT_LE(CausalImbalance(AttentionLayout::kZigzag, 8, 1001), 1.014);
  for (const int32_t num_ranks : {2, 3, 4, 5, 8, 16}) {
    const int64_t unit = num_ranks * kSpan;
    // 2 − 1/N of pairs, and what the diagonal adds to N, which is less than 1 / rows.
    EXPECT_NEAR(CausalImbalance(AttentionLayout::kContiguous, num_ranks, unit), 2 - 1.0 / num_ranks,
                1.0 / static_cast<double>(unit));
    // Some of 2N chunks have one row more.
    EXPECT_LE(CausalImbalance(AttentionLayout::kZigzag, num_ranks, unit - 23),
              1 + 2.0 * num_ranks / static_cast<double>(unit - 23));
    EXPECT_NEAR(CausalImbalance(AttentionLayout::kZigzag, num_ranks, unit), 1, 1e-12);
    EXPECT_NEAR(CausalImbalance(AttentionLayout::kStriped, num_ranks, 2 * unit), 1, 1e-12);
    // A long contiguous prompt is one of a unit many times over: 1 + (N − 1) / NM for M units.
    EXPECT_NEAR(CausalImbalance(AttentionLayout::kContiguous, num_ranks, 10 * unit),
                1 + (num_ranks - 1.0) / (10 * num_ranks), 1.0 / static_cast<double>(unit));
  }
}

TEST(SessionSpansTest, PerDegreePlaceGeneratedBlocksRoundRobin) {
  for (const AttentionLayout layout : {AttentionLayout::kZigzag, AttentionLayout::kContiguous}) {
    const SessionSpans spans = SpansWith(layout, 3, 40);  // in the middle of a block
    const int32_t owners[] = {0, 1, 2, 2, 1, 0, 0};
    for (int64_t block = 0; block < 7; ++block) {
      const int64_t position = block == 0 ? 40 : kBlock + block * kBlock;
      EXPECT_EQ(SpanOwner(spans.SpanOf(position), 0, 3), owners[block]) << block;
    }
  }
}

TEST(SessionSpansTest, ContiguousCutAPromptIntoOnePieceForEachRank) {
  const SessionSpans spans = SpansWith(AttentionLayout::kContiguous, 4, 4 * kSpan + 7);
  // A whole unit, then 7 positions: cuts at 1, 3, 5, 7.
  const int64_t begins[] = {0, 64, 128, 192, 256, 257, 259, 261, 263};
  const int32_t owners[] = {0, 1, 2, 3, 0, 1, 2, 3, 0};
  for (size_t piece = 0; piece < 8; ++piece) {
    for (int64_t position = begins[piece]; position < begins[piece + 1]; ++position) {
      EXPECT_EQ(SpanOwner(spans.SpanOf(position), 0, 4), owners[piece]) << position;
    }
  }
}

TEST(SessionSpansTest, StripedDealOutKeyBlocksAndKnowNoPrompt) {
  const SessionSpans spans = SpansWith(AttentionLayout::kStriped, 3, 40);
  EXPECT_EQ(spans, SpansWith(AttentionLayout::kStriped, 3, 1000));
  const int32_t owners[] = {0, 1, 2, 2, 1, 0, 0};
  for (int64_t position = 0; position < 7 * kBlock; ++position) {
    EXPECT_EQ(SpanOwner(spans.SpanOf(position), 0, 3), owners[position / kBlock]) << position;
  }
}

TEST(SessionSpansTest, TheCanonicalSumHasNoLayout) {
  EXPECT_EQ(SpanGeometry(kSpan, kBlock, AttentionSum::kCanonical, 3, AttentionLayout::kStriped),
            SpanGeometry(kSpan, kBlock, AttentionSum::kCanonical, 3));
}

}  // namespace
}  // namespace moebius
