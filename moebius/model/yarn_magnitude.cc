// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/yarn_magnitude.h"

#include <bit>
#include <cstdint>

namespace moebius {
namespace {

/// Natural logarithm of a finite, normal x > 0: halved into [sqrt(1/2), sqrt(2)), then
/// ln m = 2 (s + s³/3 + …) with s = (m - 1) / (m + 1), |s| < 0.172; 13 terms reach 2^-56.
double NaturalLog(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr double kSqrt2 = 0x1.6a09e667f3bcdp0;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2.0 * s * sum + exponent * kLn2;
}

}  // namespace

double YarnMagnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * NaturalLog(factor) + 1.0;
}

}  // namespace moebius
