// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/rope.h"

#include <cmath>
#include <vector>

#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::BitsOf;
using testing::FillNormal;
using testing::FloatBits;
using testing::GuardedRows;

// Made with 60-digit decimal arithmetic, rounded to fp32 where rope.h says so.
struct Angle {
  double theta;
  int64_t dim;
  size_t index;
  int64_t position;
  float inv_freq;
  float angle;
  float cosine;
  float sine;
};
constexpr Angle kAngles[] = {
    {10000.0, 64, 0, 1, 0x1p+0f, 0x1p+0f, 0x1.14a28p-1f, 0x1.aed548p-1f},
    {10000.0, 64, 1, 4095, 0x1.7ff222p-1f, 0x1.7fda22p+11f, -0x1.70d474p-4f, -0x1.fdeb88p-1f},
    {10000.0, 64, 31, 163839, 0x1.17a8e4p-13f, 0x1.5d9292p+4f, -0x1.fac8aap-1f, 0x1.2397c4p-3f},
    {10000.0, 16, 3, 16383, 0x1.030dc6p-5f, 0x1.0309bap+9f, -0x1.eb1644p-1f, 0x1.21ac36p-2f},
    {1e6, 128, 5, 131071, 0x1.5bf9fep-2f, 0x1.5bf950p+15f, 0x1.54101ep-1f, -0x1.7ec136p-1f},
    {1e6, 128, 63, 1048575, 0x1.4d1c98p-20f, 0x1.4d1c84p+0f, 0x1.10b7ecp-2f, 0x1.ed820ep-1f},
    {5e5, 128, 17, 65535, 0x1.f5ea7ep-6f, 0x1.f5e888p+10f, -0x1.f9d094p-1f, -0x1.3d5fe6p-3f},
};

TEST(RopeTest, GivesTheTablesFrequenciesAnglesAndTurns) {
  for (const Angle& a : kAngles) {
    const std::vector<float> inv_freq = RopeInvFreq(a.dim, a.theta);
    ASSERT_EQ(FloatBits(inv_freq[a.index]), FloatBits(a.inv_freq)) << a.theta << " " << a.index;
    ASSERT_EQ(FloatBits(static_cast<float>(a.position) * a.inv_freq), FloatBits(a.angle));
    RopeTable table(inv_freq, 1.0f);
    table.Fill({0, a.position});
    EXPECT_EQ(FloatBits(table.cosines(1)[a.index]), FloatBits(a.cosine)) << a.position;
    EXPECT_EQ(FloatBits(table.sines(1)[a.index]), FloatBits(a.sine)) << a.position;
    EXPECT_EQ(table.cosines(0)[a.index], 1.0f);
    EXPECT_EQ(table.sines(0)[a.index], 0.0f);
  }
}

TEST(RopeTest, YarnGivesTheTablesFrequencies) {
  const float expected_short[] = {0x1p+0f,         0x1.43d136p-2f, 0x1.99999ap-4f,
                                  0x1.94c584p-6f,  0x1.70a3d6p-8f, 0x1.1cf58cp-10f,
                                  0x1.0624dep-13f, 0x1.4b96c0p-15f};
  const std::vector<float> inv_freq =
      YarnInvFreq(16, 10000.0, {.factor = 8, .original_max_positions = 2048});
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(FloatBits(inv_freq[i]), FloatBits(expected_short[i])) << i;

  const std::vector<float> long_freq =
      YarnInvFreq(64, 10000.0, {.factor = 40, .original_max_positions = 4096});
  const std::vector<float> plain = RopeInvFreq(64, 10000.0);
  for (size_t i = 0; i <= 10; ++i) EXPECT_EQ(long_freq[i], plain[i]) << "kept: " << i;
  EXPECT_EQ(FloatBits(long_freq[16]), FloatBits(0x1.6872b2p-8f));
  EXPECT_EQ(FloatBits(long_freq[22]), FloatBits(0x1.74eea6p-13f));
  for (size_t i = 23; i < 32; ++i) {
    EXPECT_NEAR(long_freq[i], plain[i] / 40, 1e-7 * plain[i]) << "stretched: " << i;
  }
}

TEST(RopeTest, YarnRampThatIsOnePointIsAStep) {
  // Both ends of the ramp at the same index: no division by zero.
  const std::vector<float> inv_freq = YarnInvFreq(8, 10000.0,
                                                  {.factor = 4,
                                                   .original_max_positions = 1 << 20,
                                                   .beta_fast = 1,
                                                   .beta_slow = 1,
                                                   .truncate = YarnFrequencies::Truncate::kNo});
  for (const float f : inv_freq) EXPECT_TRUE(std::isfinite(f));
}

TEST(RopeTest, YarnAmplitudeFollowsThePaper) {
  EXPECT_NEAR(YarnAmplitude(40, 1.0), 1.3688879454113936, 1e-15);
  EXPECT_NEAR(YarnAmplitude(8, 0.707), 1.1470165169967643, 1e-15);
  EXPECT_EQ(YarnAmplitude(1.0, 1.0), 1.0);
}

class RotationTest : public ::testing::TestWithParam<RopePairs> {};

TEST_P(RotationTest, TurnsEachPairAndNothingElse) {
  constexpr int64_t kDim = 6;
  constexpr int64_t kHeadStride = 10;
  constexpr int64_t kOffset = 3;
  constexpr int64_t kHeads = 2;
  constexpr float kAmplitude = 1.25f;
  RopeTable table(RopeInvFreq(kDim, 10000.0), kAmplitude);
  table.Fill({0, 5, 77, 1234});
  GuardedRows<float> rows(3, kOffset + kHeads * kHeadStride);
  GuardedRows<Bf16> rounded(3, rows.width);
  FillNormal(rounded.rows(), 1);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < rows.width; ++i) {
      rows.rows().row(t)[i] = ToFloat(rounded.rows().row(t)[i]);
    }
  }
  std::vector<std::vector<float>> expected;
  for (int64_t t = 0; t < 3; ++t) {
    expected.emplace_back(rows.rows().span(t).begin(), rows.rows().span(t).end());
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kDim / 2; ++i) {
        const int64_t head = kOffset + h * kHeadStride;
        const int64_t x = head + (GetParam() == RopePairs::kInterleaved ? 2 * i : i);
        const int64_t y = head + (GetParam() == RopePairs::kInterleaved ? 2 * i + 1 : i + kDim / 2);
        const float c = table.cosines(t + 1)[static_cast<size_t>(i)];
        const float s = table.sines(t + 1)[static_cast<size_t>(i)];
        const float a = rows.rows().row(t)[x];
        const float b = rows.rows().row(t)[y];
        expected.back()[static_cast<size_t>(x)] = a * c - b * s;
        expected.back()[static_cast<size_t>(y)] = b * c + a * s;
      }
    }
  }
  const RopeHeads heads{.num_heads = kHeads, .stride = kHeadStride, .offset = kOffset};
  ApplyRope(table, 1, GetParam(), heads, rows.rows());
  ApplyRope(table, 1, GetParam(), heads, rounded.rows());
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < rows.width; ++i) {
      const float value = expected[static_cast<size_t>(t)][static_cast<size_t>(i)];
      ASSERT_EQ(FloatBits(rows.rows().row(t)[i]), FloatBits(value)) << t << ", " << i;
      ASSERT_EQ(rounded.rows().row(t)[i], ToBf16(value)) << t << ", " << i;
    }
  }
  EXPECT_TRUE(rows.GuardsIntact());
  EXPECT_TRUE(rounded.GuardsIntact());
}

TEST_P(RotationTest, KeepsLengthsAndDependsOnDistanceOnly) {
  constexpr int64_t kDim = 64;
  RopeTable table(RopeInvFreq(kDim, 10000.0), 1.0f);
  table.Fill({10, 17, 1010, 1017});
  GuardedRows<float> rows(4, kDim);
  FillNormal(rows.rows().Slice(0, 2), 3);
  for (int64_t i = 0; i < kDim; ++i) {
    rows.rows().row(2)[i] = rows.rows().row(0)[i];
    rows.rows().row(3)[i] = rows.rows().row(1)[i];
  }
  ApplyRope(table, 0, GetParam(), RopeHeads{}, rows.rows());
  double near = 0;
  double far = 0;
  for (int64_t i = 0; i < kDim; ++i) {
    near += static_cast<double>(rows.rows().row(0)[i]) * rows.rows().row(1)[i];
    far += static_cast<double>(rows.rows().row(2)[i]) * rows.rows().row(3)[i];
  }
  EXPECT_NEAR(near, far, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Pairings, RotationTest,
                         ::testing::Values(RopePairs::kInterleaved, RopePairs::kHalves));

}  // namespace
}  // namespace moebius
