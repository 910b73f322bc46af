// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/types/span.h"

#include "moebius/tensor/rows.h"

namespace moebius {

/// out = bf16((x · (1 / sqrt(mean(x²) + eps))) · weight), row by row, fp32 throughout, one rounding
/// to bf16. The sum of squares has a fixed tree: 32 partial sums, lane l over the elements i ≡ l
/// (mod 32) in ascending order, folded by halves (16, 8, 4, 2, 1). Same bits on every tier.
///
/// in, out [T, width]; weight [width]. Thread-safe; runs on an executor thread. In and out may be
/// the same memory where their types agree. eps is rounded to fp32 first.
void RmsNorm(FloatRows in, absl::Span<const Bf16> weight, double eps, MutableBf16Rows out);
void RmsNorm(Bf16Rows in, absl::Span<const Bf16> weight, double eps, MutableBf16Rows out);

/// The same without the rounding to bf16 and with fp32 weights, for the reference path.
void RmsNormFloat(FloatRows in, absl::Span<const float> weight, double eps, MutableFloatRows out);

}  // namespace moebius
