// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/fp8.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/tensor/weight_rows.h"

namespace moebius {
namespace {

// As the format's definition says it: (-1)^s · 2^(e-7) · 1.mmm, or (-1)^s · 2^-6 · 0.mmm for e = 0.
double Definition(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return code >= 128 ? -magnitude : magnitude;
}

TEST(Fp8Test, EveryFiniteCodeIsExactInBf16) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_EQ(IsFiniteFp8(byte), code != 0x7F && code != 0xFF) << code;
    const float value = Fp8ToFloat(byte);
    if (!IsFiniteFp8(byte)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), Definition(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(ToFp8(value), byte) << code;
  }
  EXPECT_EQ(Fp8ToFloat(0x7E), kMaxFp8);
}

TEST(Fp8Test, RoundsToTheNearestCodeAndTiesToEven) {
  for (int code = 0; code < 0x7E; ++code) {
    const auto low = static_cast<float>(Definition(code));
    const auto high = static_cast<float>(Definition(code + 1));
    const float middle = (low + high) / 2;  // exact
    const auto even = static_cast<uint8_t>(code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(ToFp8(middle), even) << code;
    EXPECT_EQ(ToFp8(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(ToFp8(std::nextafter(middle, 1e9f)), code + 1) << code;
    EXPECT_EQ(ToFp8(-middle), even | 0x80) << code;
  }
  EXPECT_EQ(ToFp8(1e30f), 0x7E);
  EXPECT_EQ(ToFp8(-INFINITY), 0xFE);
  EXPECT_EQ(ToFp8(NAN), 0x7F);
}

TEST(Fp8Test, APartOfAMatrixKeepsItsScales) {
  Fp8Rows blocks;
  blocks.block_rows = 4;
  blocks.block_columns = 3;
  blocks.row_offset = 2;
  WeightMatrix matrix = WeightMatrix::MakeFp8(11, 7, blocks);
  ASSERT_EQ(matrix.scales().num_rows, 4);  // rows 2 … 12 of blocks of 4
  ASSERT_EQ(matrix.scales().width, 3);
  float next = 0;
  for (int64_t r = 0; r < 4; ++r) {
    for (float& scale : matrix.scales().span(r)) scale = ++next;
  }
  for (int64_t r = 0; r < 11; ++r) {
    for (uint8_t& code : matrix.codes().span(r)) code = static_cast<uint8_t>(r);
  }
  const WeightRows whole = matrix.rows();
  EXPECT_EQ(whole.fp8.scale(0, 0), 1.0f);
  EXPECT_EQ(whole.fp8.scale(1, 3), 2.0f);
  EXPECT_EQ(whole.fp8.scale(2, 6), 6.0f);
  for (int64_t begin = 0; begin <= 11; ++begin) {
    const WeightRows part = whole.Slice(begin, 11);
    ASSERT_EQ(part.num_rows(), 11 - begin);
    for (int64_t r = 0; r < part.num_rows(); ++r) {
      ASSERT_EQ(part.fp8.codes.row(r)[0], begin + r);
      ASSERT_EQ(part.fp8.scale(r, 5), whole.fp8.scale(begin + r, 5)) << begin << ", " << r;
    }
  }
}

}  // namespace
}  // namespace moebius
