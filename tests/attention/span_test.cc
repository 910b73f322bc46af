// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/span.h"

#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(SpanGeometryTest, CutsAtAbsolutePositions) {
  const SpanGeometry geometry(128, 64);
  EXPECT_EQ(geometry.blocks_per_span(), 2);
  EXPECT_EQ(geometry.NumSpans(0), 0);
  EXPECT_EQ(geometry.NumSpans(1), 1);
  EXPECT_EQ(geometry.NumSpans(128), 1);
  EXPECT_EQ(geometry.NumSpans(129), 2);
  EXPECT_EQ(geometry.NumBlocks(129), 3);
  EXPECT_EQ(geometry.SpanOf(127), 0);
  EXPECT_EQ(geometry.SpanOf(128), 1);
  EXPECT_EQ(geometry.BlockOf(64), 1);
  EXPECT_EQ(geometry.SpanPositions(2), (PositionRange{256, 384}));
}

TEST(SpanGeometryTest, CountsTheKeysThatACausalQuerySees) {
  const SpanGeometry geometry(64, 64);
  EXPECT_EQ(geometry.NumVisibleKeys(0, 0, {}), 1);
  EXPECT_EQ(geometry.NumVisibleKeys(0, 63, {}), 64);
  EXPECT_EQ(geometry.NumVisibleKeys(0, 64, {}), 64);
  EXPECT_EQ(geometry.NumVisibleKeys(1, 63, {}), 0);
  EXPECT_EQ(geometry.NumVisibleKeys(1, 64, {}), 1);
  EXPECT_EQ(geometry.NumVisibleKeys(3, 70, {}), 0);
}

TEST(SpanGeometryTest, CountsTheKeysOfAWindowAsTheDefinitionDoes) {
  const SpanGeometry geometry(64, 64);
  for (const int64_t size : {1, 3, 63, 64, 65, 200, 1000}) {
    const KeyWindow window{size};
    for (const int64_t position : {0, 1, 2, 3, 62, 63, 64, 65, 127, 128, 300, 511}) {
      int64_t first_span = -1;
      for (int64_t span = 0; span < 9; ++span) {
        int64_t expected = 0;
        for (int64_t key = span * 64; key < (span + 1) * 64; ++key) {
          if (position - size < key && key <= position) ++expected;
        }
        EXPECT_EQ(geometry.NumVisibleKeys(span, position, window), expected)
            << "window " << size << ", position " << position << ", span " << span;
        if (first_span < 0 && expected > 0) first_span = span;
      }
      EXPECT_EQ(geometry.FirstSpan(position, window), first_span);
      EXPECT_EQ(geometry.NumEarlierSpans(position, window), position / 64 - first_span);
    }
  }
  EXPECT_EQ(KeyWindow{}.FirstKey(1 << 23), 0);
}

TEST(SpanGeometryTest, RefusesWhatTheKernelsDoNotCompute) {
  EXPECT_TRUE(ValidateSpanGeometry(1024, 128).ok());
  EXPECT_TRUE(ValidateSpanGeometry(64, 64).ok());
  EXPECT_FALSE(ValidateSpanGeometry(100, 64).ok());
  EXPECT_FALSE(ValidateSpanGeometry(64, 128).ok());
  EXPECT_FALSE(ValidateSpanGeometry(64, 0).ok());
  EXPECT_FALSE(ValidateSpanGeometry(80, 40).ok());
}

TEST(OwnerOfSpanTest, FoldsSpansOverRanks) {
  std::vector<int64_t> owners;
  for (int64_t span = 0; span < 9; ++span) owners.push_back(OwnerOfSpan(span, 4));
  EXPECT_EQ(owners, (std::vector<int64_t>{0, 1, 2, 3, 3, 2, 1, 0, 0}));
  for (int64_t span = 0; span < 9; ++span) EXPECT_EQ(OwnerOfSpan(span, 1), 0);
}

TEST(OwnerOfSpanTest, GivesEveryRankTheSameCausalWorkInEachRound) {
  for (int64_t ranks = 1; ranks <= 16; ++ranks) {
    std::vector<int64_t> work(static_cast<size_t>(ranks));
    for (int64_t span = 0; span < 2 * ranks; ++span) {
      work[static_cast<size_t>(OwnerOfSpan(span, ranks))] += span + 1;
    }
    for (const int64_t w : work) EXPECT_EQ(w, 2 * ranks + 1);
  }
}

}  // namespace
}  // namespace moebius
