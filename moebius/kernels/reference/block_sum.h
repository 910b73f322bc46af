// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/tensor/bf16.h"
#include "moebius/tensor/fp8.h"

/// Slow scalar statements of the kernels, read beside docs/numerics.md: the oracles of the tests.
namespace moebius::reference {

/// C + Σ a·w in the block sum's shape: K padded with +0 to a multiple of 32; per block of 32 two
/// chains e and o from +0 over the even and the odd elements by fused multiply-adds, then
/// C = C + (e + o). Denormals in and out are flushed whatever the thread's float environment.
float BlockSum(absl::Span<const Bf16> a, absl::Span<const Bf16> w, float c);

/// The same with fp32 weights.
float BlockSum(absl::Span<const Bf16> a, absl::Span<const float> w, float c);

/// C + Σ a·w with row `row` of FP8 weights: for each run of K that shares a scale, ascending, the
/// block sum of the codes' values from +0, padded for itself; then C = fma(scale, sum, C).
float Fp8BlockSum(absl::Span<const Bf16> a, const Fp8Rows& w, int64_t row, float c);

/// (g · sigmoid(g)) · u, rounded to bf16.
Bf16 SwiGlu(float gate, float up);

}  // namespace moebius::reference
