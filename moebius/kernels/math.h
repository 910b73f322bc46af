// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/inline.h"

/// The elementary functions of every path that reaches an output. They are plain +, -, *, / and bit
/// operations in a stated order, so that the same bits come out on every CPU, tier and compiler
/// (a platform's libm differs between CPUs with and without fused multiply-add).
///
/// Pure and thread-safe. fp32 functions expect the float environment of the executor and never
/// return a denormal. `cpu/vector_math.h` has the same operations lane by lane; tests compare bits.
namespace moebius {

/// 2^x. Relative error <= 2^-22. 0 below -126, +inf from 128 on, NaN for NaN. Exact for integers.
MOEBIUS_ALWAYS_INLINE float Exp2(float x);

/// e^x. Relative error <= 2^-22. 0 below -87.33654, +inf above 88.7228, NaN for NaN. Exp(0) is 1.
MOEBIUS_ALWAYS_INLINE float Exp(float x);

/// 1 / (1 + e^-x). Relative error <= 2^-21 for x >= -87, 0 below -88.7228. NaN for NaN.
MOEBIUS_ALWAYS_INLINE float Sigmoid(float x);

/// Base-2 logarithm. Error <= 2^-22 · max(|log2 x|, 2^-1), and relative 2^-21 near 1. -inf for
/// zeros and denormals, NaN below zero, +inf for +inf.
MOEBIUS_ALWAYS_INLINE float Log2(float x);

/// Natural logarithm: Log2(x) · ln 2, rounded once more.
MOEBIUS_ALWAYS_INLINE float Log(float x);

/// round(a · b + c) with a single rounding to nearest even; denormal inputs count as zero and a
/// result that is still below 2^-126 after rounding becomes a zero of its sign: bit for bit what
/// a fused multiply-add instruction gives in the executor's float environment, without needing one.
MOEBIUS_ALWAYS_INLINE float FusedMultiplyAdd(float a, float b, float c);

/// Sine and cosine of an angle in radians.
struct SineCosine {
  double sine = 0;
  double cosine = 1;
};

/// Absolute error <= 2^-50 for |x| <= 2^24 (checked against extended precision); NaN beyond 2^24.
SineCosine SinCos(double x);

/// Natural logarithm of a normal x > 0. Relative error <= 2^-50 away from 1.
double LogOfDouble(double x);

/// base^exponent for a normal base > 0 and a result in [2^-1000, 2^1000]. Relative error <= 2^-46:
/// the fp32 nearest to it is the fp32 nearest to the true value but for rare ties.
double Pow(double base, double exponent);

}  // namespace moebius

#include "moebius/kernels/math_inline.h"
