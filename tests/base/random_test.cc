// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/random.h"

#include <array>
#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr uint64_t kMax = 0xFFFFFFFFFFFFFFFF;

// Worked out from the definition with integers of any size.
TEST(RandomTest, BitsAreThoseOfTheDefinition) {
  EXPECT_EQ(RandomBits(0, 0), 0xa706dd2f4d197e6f);
  EXPECT_EQ(RandomBits(0, 1), 0xb382a305f4414f5e);
  EXPECT_EQ(RandomBits(7, 0), 0xb8b4c2977eabce45);
  EXPECT_EQ(RandomBits(7, 1), 0xa65305fd338ec8fe);
  EXPECT_EQ(RandomBits(kMax, 5), 0x276ebc0e52f41c24);
  EXPECT_EQ(RandomBits(1, kMax), 0xdce423fc82c0d5b8);
}

TEST(RandomTest, UnitHasTheUpper24BitsExactly) {
  EXPECT_EQ(RandomUnit(0, 0), 10946269.0f / 16777216.0f);
  EXPECT_EQ(RandomUnit(kMax, 5), 2584252.0f / 16777216.0f);
}

TEST(RandomTest, UnitIsInItsHalfOpenRange) {
  double sum = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const float value = RandomUnit(11, i);
    ASSERT_GE(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    sum += value;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(RandomTest, SequenceIsTheIndexedBits) {
  Random random(7);
  EXPECT_EQ(random.Bits(), RandomBits(7, 0));
  EXPECT_EQ(random.Unit(), RandomUnit(7, 1));
  Random copy = random;
  EXPECT_EQ(random.Bits(), copy.Bits());
}

TEST(RandomTest, BelowIsTheHighProduct) {
  Random random(42);
  EXPECT_EQ(random.Below(10), 3u);
  EXPECT_EQ(random.Below(10), 9u);
  EXPECT_EQ(random.Below(10), 4u);
  EXPECT_EQ(random.Below(10), 0u);
  EXPECT_EQ(random.Below(1), 0u);
}

TEST(RandomTest, BelowReachesEveryValueAboutEquallyOften) {
  Random random(3);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts[random.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
}

TEST(RandomTest, NormalHasMeanZeroAndVarianceOne) {
  Random random(5);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < 50'000; ++i) {
    const double value = random.Normal();
    ASSERT_LE(std::fabs(value), 6.0);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 50'000, 0.0, 0.03);
  EXPECT_NEAR(squares / 50'000, 1.0, 0.03);
}

TEST(RandomTest, NeighbouringSeedsDoNotShareValues) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (uint64_t index = 0; index < 100; ++index) seen.insert(RandomBits(seed, index));
  }
  EXPECT_EQ(seen.size(), 10'000u);
}

TEST(RandomTest, SystemSeedsDiffer) { EXPECT_NE(SeedFromSystem(), SeedFromSystem()); }

}  // namespace
}  // namespace moebius
