// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/session_spans.h"

#include <vector>

#include "gtest/gtest.h"

#include "moebius/attention/shard.h"
#include "moebius/attention/zigzag.h"

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

TEST(SessionSpansTest, PerDegreeHoldEveryPositionOnceInOrder) {
  for (const int32_t num_ranks : {1, 2, 3, 4, 5, 8}) {
    const SpanGeometry geometry(kSpan, kBlock, AttentionSum::kPerDegree, num_ranks);
    const int64_t unit = 2 * num_ranks * kSpan;
    for (const int64_t prompt :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{2} * num_ranks - 1,
          unit - 1, unit, unit + 1, 2 * unit, 2 * unit + 77}) {
      const SessionSpans spans(geometry, prompt);
      const int64_t length = prompt + 5 * kBlock * num_ranks + 3;
      int64_t next = 0;
      for (int64_t span = 0; next < length; ++span) {
        const PositionRange positions = spans.SpanPositions(span);
        ASSERT_EQ(positions.begin, next);
        ASSERT_LE(positions.size(), kSpan);
        for (int64_t position = positions.begin; position < positions.end; ++position) {
          ASSERT_EQ(spans.SpanOf(position), span) << position << " of " << prompt;
          ASSERT_EQ(spans.NumSpans(position + 1), span + 1);
        }
        next = positions.end;
      }
      std::vector<int64_t> counts(static_cast<size_t>(num_ranks));
      for (int64_t position = 0; position <= length; ++position) {
        for (int32_t owner = 0; owner < num_ranks; ++owner) {
          ASSERT_EQ(spans.NumPositionsOf(owner, position), counts[static_cast<size_t>(owner)])
              << num_ranks << " ranks, " << position << " behind a prompt of " << prompt;
        }
        ++counts[static_cast<size_t>(OwnerOfSpan(spans.SpanOf(position), num_ranks))];
      }
    }
  }
}

TEST(SessionSpansTest, PerDegreeCutAPromptOfOneUnitAsTheClassicZigzag) {
  for (const int32_t num_ranks : {1, 2, 3, 8}) {
    const SpanGeometry geometry(kSpan, kBlock, AttentionSum::kPerDegree, num_ranks);
    for (int64_t prompt = 0; prompt < 2 * num_ranks * kSpan; prompt += 7) {
      const SessionSpans spans(geometry, prompt);
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        for (const PositionRange& range : ZigzagRangesOf(prompt, {rank, num_ranks})) {
          for (int64_t position = range.begin; position < range.end; ++position) {
            EXPECT_EQ(SpanOwner(spans.SpanOf(position), 0, num_ranks), rank);
          }
        }
      }
    }
  }
}

TEST(SessionSpansTest, PerDegreePlaceGeneratedBlocksRoundRobin) {
  const SpanGeometry geometry(kSpan, kBlock, AttentionSum::kPerDegree, 3);
  const SessionSpans spans(geometry, 40);  // in the middle of a block
  const int32_t owners[] = {0, 1, 2, 2, 1, 0, 0};
  for (int64_t block = 0; block < 7; ++block) {
    const int64_t position = block == 0 ? 40 : kBlock + block * kBlock;
    EXPECT_EQ(SpanOwner(spans.SpanOf(position), 0, 3), owners[block]) << block;
  }
}

}  // namespace
}  // namespace moebius
