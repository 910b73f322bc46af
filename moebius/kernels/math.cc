// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/math.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace moebius {
namespace {

// 1.5 · 2^52: adding it rounds |x| < 2^51 to an integer in the low bits.
constexpr double kRoundingShift = 0x1.8p+52;

// π/2 in parts of 27 bits and a rest: n · part is exact for |n| <= 2^25.
constexpr double kHalfPi1 = 0x1.921fb54p+0;
constexpr double kHalfPi2 = 0x1.10b461p-30;
constexpr double kHalfPi3 = 0x1.a62633p-58;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kMaxAngle = 0x1p+24;

// ln 2 in 40 bits and a rest.
constexpr double kLn2High = 0x1.62e42fefa2p-1;
constexpr double kLn2Low = 0x1.9ef35793c7673p-41;
constexpr double kLog2OfE = 0x1.71547652b82fep+0;

// Taylor coefficients ±1/k!; the rest is below 2^-58 for |r| <= π/4.
constexpr double kSineCoefficients[8] = {
    -0x1.5555555555555p-3,  0x1.1111111111111p-7,  -0x1.a01a01a01a01ap-13, 0x1.71de3a556c734p-19,
    -0x1.ae64567f544e4p-26, 0x1.6124613a86d09p-33, -0x1.ae7f3e733b81fp-41, 0x1.952c77030ad4ap-49};
constexpr double kCosineCoefficients[8] = {
    0x1.5555555555555p-5,  -0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-16, -0x1.27e4fb7789f5cp-22,
    0x1.1eed8eff8d898p-29, -0x1.93974a8c07c9dp-37, 0x1.ae7f3e733b81fp-45, -0x1.6827863b97d97p-53};
// 1/k! for k = 2 … 13; the rest is below 2^-57 for |r| <= ln 2 / 2.
constexpr double kExpCoefficients[12] = {0x1p-1,
                                         0x1.5555555555555p-3,
                                         0x1.5555555555555p-5,
                                         0x1.1111111111111p-7,
                                         0x1.6c16c16c16c17p-10,
                                         0x1.a01a01a01a01ap-13,
                                         0x1.a01a01a01a01ap-16,
                                         0x1.71de3a556c734p-19,
                                         0x1.27e4fb7789f5cp-22,
                                         0x1.ae64567f544e4p-26,
                                         0x1.1eed8eff8d898p-29,
                                         0x1.6124613a86d09p-33};

template <int size>
double Horner(const double (&coefficients)[size], double x) {
  double p = coefficients[size - 1];
  for (int i = size - 2; i >= 0; --i) p = p * x + coefficients[i];
  return p;
}

// e^y for |y| <= 700.
double ExpOfDouble(double y) {
  const double shifted = y * kLog2OfE + kRoundingShift;
  const double whole = shifted - kRoundingShift;
  const double r = (y - whole * kLn2High) - whole * kLn2Low;
  const double e_to_r = Horner(kExpCoefficients, r) * (r * r) + r + 1.0;
  const uint64_t n = std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kRoundingShift);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(e_to_r) + (n << 52));
}

}  // namespace

SineCosine SinCos(double x) {
  if (!(x >= -kMaxAngle && x <= kMaxAngle)) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return SineCosine{nan, nan};
  }
  // x = n · π/2 + r, |r| <= π/4.
  const double shifted = x * kTwoOverPi + kRoundingShift;
  const double n = shifted - kRoundingShift;
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const double z = r * r;
  const double sine = Horner(kSineCoefficients, z) * (z * r) + r;
  const double cosine = Horner(kCosineCoefficients, z) * (z * z) + (1.0 - 0.5 * z);
  switch (std::bit_cast<uint64_t>(shifted) & 3) {
    case 0:
      return SineCosine{sine, cosine};
    case 1:
      return SineCosine{cosine, -sine};
    case 2:
      return SineCosine{-sine, -cosine};
    default:
      return SineCosine{-cosine, sine};
  }
}

double LogOfDouble(double x) {
  // x = m · 2^e with m in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t kSqrtHalfBits = 0x3FE6A09E667F3BCD;
  const uint64_t offset = std::bit_cast<uint64_t>(x) - kSqrtHalfBits;
  const double e = static_cast<double>(static_cast<int64_t>(offset) >> 52);
  const double m = std::bit_cast<double>((offset & 0x000FFFFFFFFFFFFF) + kSqrtHalfBits);
  // ln m = 2 · atanh(s) = 2s · Σ s^(2i) / (2i + 1); the rest is below 2^-56.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double sum = 1.0 / 23;
  for (int k = 21; k >= 3; k -= 2) sum = sum * z + 1.0 / k;
  const double ln_m = 2.0 * s * (sum * z) + 2.0 * s;
  return e * kLn2High + (ln_m + e * kLn2Low);
}

double Pow(double base, double exponent) { return ExpOfDouble(exponent * LogOfDouble(base)); }

}  // namespace moebius
