// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/math.h"

#include <cmath>
#include <vector>

#include "moebius/kernels/cpu/vector_math.h"
#include "moebius/kernels/cpu/vector_portable.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::FloatBits;
using testing::kInfinity;
using testing::kNan;

constexpr uint64_t kSeed = 31;

// |actual / expected - 1| in units of 2^-24.
double RelativeUlps(float actual, long double expected) {
  return static_cast<double>(std::fabs((static_cast<long double>(actual) - expected) / expected) *
                             0x1p24L);
}

// Arguments over [low, high): evenly spaced, with neighbours of integers and random ones.
std::vector<float> Arguments(float low, float high) {
  std::vector<float> arguments;
  for (int i = 0; i < 200000; ++i) {
    arguments.push_back(low + (high - low) * (static_cast<float>(i) / 200000.0f));
  }
  for (float whole = std::ceil(low); whole < high; whole += 1.0f) {
    for (const float x : {whole, whole + 0.5f, std::nextafter(whole, low),
                          std::nextafter(whole + 0.5f, low), std::nextafter(whole + 0.5f, high)}) {
      if (x >= low && x < high) arguments.push_back(x);
    }
  }
  Random random(kSeed);
  for (int i = 0; i < 100000; ++i) arguments.push_back(low + (high - low) * random.Unit());
  return arguments;
}

TEST(MathTest, Exp2IsWithinItsBound) {
  double worst = 0;
  for (const float x : Arguments(-126.0f, 128.0f)) {
    worst = std::max(worst, RelativeUlps(Exp2(x), std::exp2(static_cast<long double>(x))));
  }
  EXPECT_LE(worst, 4.0);  // 2^-22
  RecordProperty("worst_ulps", std::to_string(worst));
  for (int n = -126; n < 128; ++n) EXPECT_EQ(Exp2(static_cast<float>(n)), std::ldexp(1.0f, n));
}

TEST(MathTest, ExpIsWithinItsBound) {
  double worst = 0;
  for (const float x : Arguments(-87.33f, 88.72f)) {
    worst = std::max(worst, RelativeUlps(Exp(x), std::exp(static_cast<long double>(x))));
  }
  EXPECT_LE(worst, 4.0);
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_EQ(Exp(0.0f), 1.0f);
}

TEST(MathTest, SigmoidIsWithinItsBound) {
  double worst = 0;
  for (const float x : Arguments(-87.0f, 87.0f)) {
    worst =
        std::max(worst, RelativeUlps(Sigmoid(x), 1 / (1 + std::exp(-static_cast<long double>(x)))));
  }
  EXPECT_LE(worst, 8.0);  // 2^-21
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_EQ(Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(100.0f), 1.0f);
  EXPECT_EQ(Sigmoid(-100.0f), 0.0f);
}

TEST(MathTest, LogarithmsAreWithinTheirBounds) {
  Random random(kSeed);
  double worst = 0;
  double worst_near_one = 0;
  for (int i = 0; i < 300000; ++i) {
    const uint32_t bits = 0x00800000 + static_cast<uint32_t>(random.Below(0x7F000000));
    const float x = std::bit_cast<float>(bits);
    const long double expected = std::log2(static_cast<long double>(x));
    const long double scale = std::max<long double>(std::fabs(expected), 0.5L);
    worst = std::max(
        worst, static_cast<double>(std::fabs(static_cast<long double>(Log2(x)) - expected) / scale *
                                   0x1p24L));
    const float near_one = 0.75f + 0.5f * random.Unit();
    if (near_one == 1.0f) continue;
    worst_near_one =
        std::max(worst_near_one,
                 RelativeUlps(Log2(near_one), std::log2(static_cast<long double>(near_one))));
  }
  EXPECT_LE(worst, 4.0);
  EXPECT_LE(worst_near_one, 8.0);
  EXPECT_EQ(Log2(1.0f), 0.0f);
  EXPECT_EQ(Log2(0x1p-126f), -126.0f);
  EXPECT_EQ(Log2(0x1p127f), 127.0f);
  EXPECT_NEAR(Log(10.0f), 2.302585093f, 1e-6f);
}

TEST(MathTest, EdgesAreTheSameEverywhere) {
  EXPECT_EQ(Exp2(-126.01f), 0.0f);
  EXPECT_EQ(Exp2(-kInfinity), 0.0f);
  EXPECT_EQ(Exp2(128.0f), kInfinity);
  EXPECT_TRUE(std::isnan(Exp2(kNan)));
  EXPECT_EQ(Exp(-87.4f), 0.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(88.73f), kInfinity);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(kNan)));
  EXPECT_TRUE(std::isnan(Sigmoid(kNan)));
  EXPECT_EQ(Log2(0.0f), -kInfinity);
  EXPECT_EQ(Log2(-0.0f), -kInfinity);
  EXPECT_EQ(Log2(0x1p-130f), -kInfinity);
  EXPECT_EQ(Log2(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Log2(-1.0f)));
  EXPECT_TRUE(std::isnan(Log2(-kInfinity)));
  EXPECT_TRUE(std::isnan(Log2(kNan)));
}

TEST(MathTest, LanesGiveTheScalarBits) {
  std::vector<float> arguments = Arguments(-130.0f, 130.0f);
  for (const float x :
       {0.0f, -0.0f, kInfinity, -kInfinity, kNan, -87.33654f, 88.7228f, 0x1p-130f}) {
    arguments.push_back(x);
  }
  while (arguments.size() % PortableVector::kLanes != 0) arguments.push_back(0.0f);
  for (size_t i = 0; i < arguments.size(); i += PortableVector::kLanes) {
    const PortableVector::Float x = PortableVector::Load(&arguments[i]);
    const PortableVector::Float exp2 = VectorExp2<PortableVector>(x);
    const PortableVector::Float exp = VectorExp<PortableVector>(x);
    const PortableVector::Float sigmoid = VectorSigmoid<PortableVector>(x);
    PortableVector::Float not_above_0[2] = {x, x + x};
    VectorsExpNotAbove0<PortableVector, 2>(not_above_0);
    for (int lane = 0; lane < PortableVector::kLanes; ++lane) {
      ASSERT_EQ(FloatBits(exp2[lane]), FloatBits(Exp2(x[lane]))) << x[lane];
      ASSERT_EQ(FloatBits(exp[lane]), FloatBits(Exp(x[lane]))) << x[lane];
      ASSERT_EQ(FloatBits(sigmoid[lane]), FloatBits(Sigmoid(x[lane]))) << x[lane];
      if (x[lane] > 0) continue;
      ASSERT_EQ(FloatBits(not_above_0[0][lane]), FloatBits(Exp(x[lane]))) << x[lane];
      ASSERT_EQ(FloatBits(not_above_0[1][lane]), FloatBits(Exp(x[lane] + x[lane]))) << x[lane];
    }
  }
}

// round(a · b + c) in integer arithmetic: the sum on a grid of 2^-300, rounded to 24 bits, flushed.
float ExactFma(float a, float b, float c) {
  // long double has 64 bits: the product is exact; the sum is rounded to odd by its error term.
  const auto flush = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  const long double product = static_cast<long double>(flush(a)) * flush(b);
  const long double addend = flush(c);
  const long double sum = product + addend;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const long double back = sum - product;
  const long double error = (product - (sum - back)) + (addend - back);
  long double odd = sum;
  if (error != 0) {
    int exponent = 0;
    const long double mantissa = std::frexp(sum, &exponent) * 0x1p64L;
    const bool is_odd = std::fmod(mantissa, 2.0L) != 0;
    if (!is_odd) odd = std::nextafter(sum, error > 0 ? HUGE_VALL : -HUGE_VALL);
  }
  if (odd == 0) return static_cast<float>(odd);
  // Round to 24 bits with an unbounded exponent.
  int exponent = 0;
  const long double mantissa = std::frexp(odd, &exponent) * 0x1p24L;
  const long double rounded = std::nearbyint(mantissa);
  const long double value = std::ldexp(rounded, exponent - 24);
  if (std::fabs(value) < 0x1p-126L)
    return std::copysign(0.0f, static_cast<float>(value < 0 ? -1 : 1));
  if (std::fabs(value) >= 0x1p128L) return value < 0 ? -kInfinity : kInfinity;
  return static_cast<float>(value);
}

TEST(FusedMultiplyAddTest, RoundsOnceOverTheWholeRange) {
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int i = 0; i < 400000; ++i) {
    float a = std::bit_cast<float>(static_cast<uint32_t>(random.Bits()));
    float b = std::bit_cast<float>(static_cast<uint32_t>(random.Bits()));
    float c = std::bit_cast<float>(static_cast<uint32_t>(random.Bits()));
    if (i % 4 != 0) {
      // Exponents such that the product and the addend overlap, near 1 or near 2^-126.
      const uint32_t base = i % 4 == 1 ? 127 : 64;
      const auto with_exponent = [&](float x, uint32_t exponent) {
        return std::bit_cast<float>((std::bit_cast<uint32_t>(x) & 0x807FFFFF) | (exponent << 23));
      };
      a = with_exponent(a, base);
      b = with_exponent(b, base);
      const int32_t middle = 2 * static_cast<int32_t>(base) - 127;
      const int32_t exponent = middle - 30 + static_cast<int32_t>(random.Below(60));
      c = with_exponent(c, static_cast<uint32_t>(std::max(exponent, 0)));
    }
    if (a != a || b != b || c != c) continue;
    ASSERT_EQ(FloatBits(FusedMultiplyAdd(a, b, c)), FloatBits(ExactFma(a, b, c)))
        << std::hexfloat << a << " " << b << " " << c;
  }
}

TEST(FusedMultiplyAddTest, DiffersFromTwoRoundings) {
  const float a = 1.0f + 0x1p-12f;
  EXPECT_EQ(FusedMultiplyAdd(a, a, -1.0f - 0x1p-11f), 0x1p-24f);
  EXPECT_EQ(FusedMultiplyAdd(0x1p127f, 2.0f, -0x1p127f), 0x1p127f);
  EXPECT_EQ(FusedMultiplyAdd(0x1p-63f, 0x1p-63f, -0x1p-140f), 0x1p-126f) << "denormal addend is 0";
  EXPECT_EQ(FloatBits(FusedMultiplyAdd(-0x1p-70f, 0x1p-70f, 0.0f)), FloatBits(-0.0f));
  EXPECT_EQ(FloatBits(FusedMultiplyAdd(-1.0f, 1.0f, 1.0f)), FloatBits(0.0f));
  EXPECT_TRUE(std::isnan(FusedMultiplyAdd(kInfinity, 0.0f, 1.0f)));
  EXPECT_TRUE(std::isnan(FusedMultiplyAdd(kInfinity, 1.0f, -kInfinity)));
}

TEST(MathTest, SineAndCosineHoldForLargeAngles) {
  Random random(kSeed);
  for (const double limit : {1.0, 100.0, 65536.0, 1048576.0, 16777216.0}) {
    double worst = 0;
    for (int i = 0; i < 50000; ++i) {
      const double x = (static_cast<double>(random.Unit()) * 2 - 1) * limit;
      const SineCosine actual = SinCos(x);
      const long double exact = x;
      worst = std::max({worst, static_cast<double>(std::fabs(actual.sine - std::sin(exact))),
                        static_cast<double>(std::fabs(actual.cosine - std::cos(exact)))});
    }
    EXPECT_LE(worst, 0x1p-50) << "up to " << limit;
  }
  EXPECT_EQ(SinCos(0.0).sine, 0.0);
  EXPECT_EQ(SinCos(0.0).cosine, 1.0);
  EXPECT_TRUE(std::isnan(SinCos(1e9).sine));
}

TEST(MathTest, LogAndPowHoldInFp64) {
  Random random(kSeed);
  double worst_log = 0;
  double worst_pow = 0;
  for (int i = 0; i < 50000; ++i) {
    const double x = std::ldexp(1.0 + static_cast<double>(random.Unit()),
                                static_cast<int>(random.Below(40)) - 10);
    const long double exact = std::log(static_cast<long double>(x));
    if (std::fabs(exact) > 0.1L) {
      worst_log =
          std::max(worst_log, static_cast<double>(std::fabs((LogOfDouble(x) - exact) / exact)));
    }
    const double exponent = static_cast<double>(random.Unit()) * 2 - 1;
    const double base = 100 + 1e7 * static_cast<double>(random.Unit());
    const long double power =
        std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
    worst_pow =
        std::max(worst_pow, static_cast<double>(std::fabs((Pow(base, exponent) - power) / power)));
  }
  EXPECT_LE(worst_log, 0x1p-50);
  EXPECT_LE(worst_pow, 0x1p-46);
  EXPECT_EQ(Pow(10000.0, 0.0), 1.0);
}

}  // namespace
}  // namespace moebius
