// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/merge.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(MergePartialTest, TakesTheOtherSideOfAnEmptyOneBitForBit) {
  std::vector<float> full{1.5f, -0.0f, 3.25f};
  std::vector<float> garbage{kNaN, kNaN, kNaN};  // an empty partial's memory is never read
  Partial into{.acc = absl::MakeSpan(garbage), .m = kNaN, .l = kNaN};
  const Partial from{.acc = absl::MakeSpan(full), .m = -2.0f, .l = 1.25f, .num_keys = 3};
  MergePartial(from, into);
  EXPECT_EQ(garbage[0], 1.5f);
  EXPECT_TRUE(std::signbit(garbage[1]));
  EXPECT_EQ(into.m, -2.0f);
  EXPECT_EQ(into.l, 1.25f);
  EXPECT_EQ(into.num_keys, 3);

  std::vector<float> more_garbage{kNaN, kNaN, kNaN};
  MergePartial({.acc = absl::MakeSpan(more_garbage), .m = kNaN, .l = kNaN}, into);
  EXPECT_EQ(garbage[2], 3.25f);
  EXPECT_EQ(into.num_keys, 3);
}

TEST(MergePartialTest, OfTwoEmptyPartialsIsEmptyAndGivesZero) {
  std::vector<float> a(2), b(2);
  Partial into{.acc = absl::MakeSpan(a)};
  MergePartial({.acc = absl::MakeSpan(b)}, into);
  EXPECT_TRUE(into.empty());
  EXPECT_EQ(LogSumExp(into), -std::numeric_limits<double>::infinity());
  std::vector<Bf16> out(2, Bf16{0x7FC0});
  NormalizePartial(into, absl::MakeSpan(out));
  EXPECT_EQ(out[0], Bf16{});
  EXPECT_EQ(out[1], Bf16{});
}

TEST(MergePartialTest, AddsKeysOfBothSidesWithTheirWeights) {
  // Two keys with scores ln 3 and 0, values 4 and 8: (3·4 + 8) / 4 = 5.
  std::vector<float> a{4.0f}, b{8.0f};
  const float ln3 = 1.0986123f;
  Partial into{.acc = absl::MakeSpan(a), .m = ln3, .l = 1.0f, .num_keys = 1};
  MergePartial({.acc = absl::MakeSpan(b), .m = 0.0f, .l = 1.0f, .num_keys = 1}, into);
  EXPECT_EQ(into.num_keys, 2);
  EXPECT_EQ(into.m, ln3);
  EXPECT_NEAR(LogSumExp(into), std::log(4.0), 1e-6);
  std::vector<Bf16> out(1);
  NormalizePartial(into, absl::MakeSpan(out));
  EXPECT_EQ(ToFloat(out[0]), 5.0f);
}

TEST(MergePartialTest, KeepsScoresApartThatOverflowTogether) {
  std::vector<float> a{1.0f}, b{2.0f};
  Partial into{.acc = absl::MakeSpan(a), .m = -3e38f, .l = 1.0f, .num_keys = 1};
  MergePartial({.acc = absl::MakeSpan(b), .m = 3e38f, .l = 1.0f, .num_keys = 1}, into);
  EXPECT_EQ(into.acc[0], 2.0f);
  EXPECT_EQ(into.l, 1.0f);
}

TEST(MergePartialTest, StaysWithinTheFp32BoundForManySpans) {
  Random random(41);
  constexpr int kSpans = 64;
  double numerator = 0, denominator = 0;
  std::vector<float> fold_acc(1);
  Partial fold{.acc = absl::MakeSpan(fold_acc)};
  for (int span = 0; span < kSpans; ++span) {
    const float m = 3.0f * random.Normal();
    const float l = 1.0f + 10.0f * random.Unit();
    std::vector<float> acc{l * random.Normal()};
    numerator += std::exp(static_cast<double>(m)) * acc[0];
    denominator += std::exp(static_cast<double>(m)) * l;
    MergePartial({.acc = absl::MakeSpan(acc), .m = m, .l = l, .num_keys = 9}, fold);
  }
  EXPECT_NEAR(fold.acc[0] / fold.l, numerator / denominator, 5e-6);
  EXPECT_NEAR(LogSumExp(fold), std::log(denominator), 1e-5);
  EXPECT_EQ(fold.num_keys, 9 * kSpans);
}

TEST(MergePartialTest, LetsANaNThrough) {
  std::vector<float> a{1.0f}, b{kNaN};
  Partial into{.acc = absl::MakeSpan(a), .m = 0.0f, .l = 1.0f, .num_keys = 1};
  MergePartial({.acc = absl::MakeSpan(b), .m = 0.0f, .l = kNaN, .num_keys = 1}, into);
  EXPECT_TRUE(std::isnan(into.acc[0]));
  EXPECT_TRUE(std::isnan(into.l));
}

TEST(MergeSinkTest, WeighsLikeAKeyWithoutAValue) {
  std::vector<float> a{6.0f};
  Partial partial{.acc = absl::MakeSpan(a), .m = 0.0f, .l = 2.0f, .num_keys = 2};
  MergeSink(0.0f, partial);
  EXPECT_EQ(partial.acc[0] / partial.l, 2.0f);
  MergeSink(200.0f, partial);
  EXPECT_EQ(partial.acc[0], 0.0f);
  EXPECT_EQ(partial.l, 1.0f);
}

}  // namespace
}  // namespace moebius
