// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/row_ops.h"

#include <cmath>
#include <vector>

#include "moebius/kernels/norm.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::BitsOf;
using testing::FillNormal;
using testing::FloatBits;
using testing::GuardedRows;
using testing::kNan;

// The tree of norm.h, written out plainly.
float SumOfSquares(absl::Span<const float> x) {
  std::vector<float> lanes(32, 0.0f);
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 32] += x[i] * x[i];
  for (size_t half = 16; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

TEST(RmsNormTest, SumsInTheFixedTreeForAnyWidth) {
  for (const int64_t width : {1, 31, 32, 33, 70, 192, 1000}) {
    GuardedRows<float> in(3, width);
    GuardedRows<Bf16> weight(1, width);
    FillNormal(in.rows(), 1);
    FillNormal(weight.rows(), 2);
    GuardedRows<Bf16> out(3, width);
    RmsNorm(in.rows(), weight.rows().span(0), 1e-6, out.rows());
    for (int64_t t = 0; t < 3; ++t) {
      const absl::Span<const float> x = in.rows().span(t);
      const float scale = 1.0f / std::sqrt(SumOfSquares(x) / static_cast<float>(width) + 1e-6f);
      for (int64_t i = 0; i < width; ++i) {
        const size_t index = static_cast<size_t>(i);
        ASSERT_EQ(out.rows().row(t)[i],
                  ToBf16((x[index] * scale) * ToFloat(weight.rows().span(0)[index])))
            << width << ": " << t << ", " << i;
      }
    }
    EXPECT_TRUE(out.GuardsIntact());
  }
}

TEST(RmsNormTest, IsCloseToTheTrueNorm) {
  GuardedRows<float> in(1, 7168);
  GuardedRows<float> weight(1, 7168);
  GuardedRows<float> out(1, 7168);
  FillNormal(in.rows(), 3, 10.0f);
  FillNormal(weight.rows(), 4);
  RmsNormFloat(in.rows(), weight.rows().span(0), 1e-5, out.rows());
  double sum = 0;
  for (const float x : in.rows().span(0)) sum += static_cast<double>(x) * x;
  const double scale = 1 / std::sqrt(sum / 7168 + 1e-5);
  for (int64_t i = 0; i < 7168; ++i) {
    const double expected = in.rows().row(0)[i] * scale * weight.rows().row(0)[i];
    ASSERT_NEAR(out.rows().row(0)[i], expected, 1e-6 * std::fabs(expected) + 1e-12);
  }
}

TEST(RmsNormTest, TakesBf16RowsAlsoInPlaceAndKeepsRowsApart) {
  GuardedRows<Bf16> rows(3, 50);
  GuardedRows<Bf16> weight(1, 50);
  FillNormal(rows.rows(), 5);
  FillNormal(weight.rows(), 6);
  GuardedRows<float> widened(3, 50);
  WidenRows(rows.rows(), widened.rows());
  GuardedRows<Bf16> expected(3, 50);
  RmsNorm(widened.rows(), weight.rows().span(0), 1e-6, expected.rows());
  rows.rows().row(1)[7] = ToBf16(kNan);
  RmsNorm(rows.rows(), weight.rows().span(0), 1e-6, rows.rows());
  EXPECT_EQ(BitsOf(rows.rows(), 0), BitsOf(expected.rows(), 0));
  EXPECT_EQ(BitsOf(rows.rows(), 2), BitsOf(expected.rows(), 2));
  EXPECT_EQ(BitsOf(rows.rows(), 1)[0], FloatBits(kNan));
}

TEST(RmsNormTest, OfZerosIsZero) {
  GuardedRows<float> in(1, 40);
  for (float& x : in.rows().span(0)) x = 0;
  std::vector<Bf16> weight(40, ToBf16(1.0f));
  GuardedRows<Bf16> out(1, 40);
  RmsNorm(in.rows(), weight, 1e-6, out.rows());
  for (const Bf16 y : out.rows().span(0)) EXPECT_EQ(y, Bf16{});
}

TEST(RowOpsTest, GathersAddsWidensAndRounds) {
  GuardedRows<Bf16> table(5, 7);
  FillNormal(table.rows(), 1);
  GuardedRows<float> residual(3, 7);
  GatherRows(table.rows(), {4, 0, 4}, residual.rows());
  GuardedRows<Bf16> added(3, 7);
  FillNormal(added.rows(), 2);
  GuardedRows<float> added_float(3, 7);
  FillNormal(added_float.rows(), 3);
  AddRows(added.rows(), residual.rows());
  AddRows(added_float.rows(), residual.rows());
  GuardedRows<Bf16> rounded(3, 7);
  RoundRows(residual.rows(), rounded.rows());
  const int64_t ids[] = {4, 0, 4};
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 7; ++i) {
      const float expected =
          (ToFloat(table.rows().row(ids[t])[i]) + ToFloat(added.rows().row(t)[i])) +
          added_float.rows().row(t)[i];
      ASSERT_EQ(residual.rows().row(t)[i], expected);
      ASSERT_EQ(rounded.rows().row(t)[i], ToBf16(expected));
    }
  }
  EXPECT_TRUE(residual.GuardsIntact());
  EXPECT_TRUE(rounded.GuardsIntact());
}

TEST(RowOpsTest, RoundsHalvesToEvenAndKeepsNan) {
  const float values[] = {1.00390625f, 1.01171875f, kNan, -0.0f, 3.4e38f, testing::kInfinity};
  Bf16 out[6];
  RoundRows(FloatRows(values, 1, 6), MutableBf16Rows(out, 1, 6));
  EXPECT_EQ(ToFloat(out[0]), 1.0f);       // halfway, down to even
  EXPECT_EQ(ToFloat(out[1]), 1.015625f);  // halfway, up to even
  EXPECT_TRUE(std::isnan(ToFloat(out[2])));
  EXPECT_EQ(out[3].bits, 0x8000);
  EXPECT_EQ(out[4].bits, 0x7F80);
  EXPECT_EQ(out[5].bits, 0x7F80);
}

}  // namespace
}  // namespace moebius
