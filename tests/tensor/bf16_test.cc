// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/bf16.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace moebius {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

bool IsNan(Bf16 value) { return (value.bits & 0x7F80) == 0x7F80 && (value.bits & 0x7F) != 0; }

TEST(Bf16Test, EveryValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    const Bf16 back = ToBf16(ToFloat(value));
    if (IsNan(value)) {
      ASSERT_EQ(back.bits, bits | 0x40) << std::hex << bits;  // quiet, sign and payload kept
    } else {
      ASSERT_EQ(back.bits, bits) << std::hex << bits;
    }
  }
}

TEST(Bf16Test, WidensToTheHighHalf) {
  EXPECT_EQ(ToFloat(Bf16{0x3F80}), 1.0f);
  EXPECT_EQ(ToFloat(Bf16{0xC049}), -3.140625f);
  EXPECT_EQ(Bits(ToFloat(Bf16{0x8000})), 0x80000000u);
}

// For every finite value: the midpoint to its upper neighbour goes to the even one, and one fp32
// step to either side of the midpoint goes to the nearer one.
TEST(Bf16Test, RoundsEveryMidpointToEvenAndItsNeighboursToTheNearest) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t magnitude = 0; magnitude < 0x7F80; ++magnitude) {
      const uint32_t lower = sign | magnitude;
      const uint32_t upper = lower + 1;  // 0x7F80, infinity, above the largest finite value
      const uint32_t midpoint = (lower << 16) | 0x8000;
      const uint32_t even = (lower & 1) == 0 ? lower : upper;
      ASSERT_EQ(ToBf16(FromBits(midpoint)).bits, even) << std::hex << midpoint;
      ASSERT_EQ(ToBf16(FromBits(midpoint - 1)).bits, lower) << std::hex << midpoint;
      ASSERT_EQ(ToBf16(FromBits(midpoint + 1)).bits, upper) << std::hex << midpoint;
    }
  }
}

TEST(Bf16Test, OverflowIsInfinityOfTheSameSign) {
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(ToBf16(-std::numeric_limits<float>::max()).bits, 0xFF80);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
}

TEST(Bf16Test, NanNeverBecomesInfinity) {
  // All payload bits lie in the half that rounding cuts away.
  EXPECT_TRUE(IsNan(ToBf16(FromBits(0x7F800001))));
  EXPECT_TRUE(IsNan(ToBf16(FromBits(0x7FFFFFFF))));
  EXPECT_EQ(ToBf16(FromBits(0xFF800001)).bits, 0xFFC0);
}

TEST(Bf16Test, IsConstexpr) {
  static_assert(ToBf16(1.5f).bits == 0x3FC0);
  static_assert(ToFloat(Bf16{0x3FC0}) == 1.5f);
}

TEST(HalfTest, EveryValueIsItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint32_t exponent = (bits >> 10) & 0x1F;
    const uint32_t mantissa = bits & 0x3FF;
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    ASSERT_EQ(Bits(value) >> 31, bits >> 15) << std::hex << bits;
    if (exponent == 0x1F) {
      ASSERT_EQ(std::isinf(value), mantissa == 0) << std::hex << bits;
      ASSERT_EQ(Bits(value) & 0x7FFFFF, mantissa << 13) << std::hex << bits;
      continue;
    }
    // 2^(e-15) (1 + m/1024), or 2^-14 m/1024 without the hidden bit.
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    ASSERT_EQ(std::fabs(static_cast<double>(value)), magnitude) << std::hex << bits;
  }
}

}  // namespace
}  // namespace moebius
