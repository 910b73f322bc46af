// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/kernels/attention_calls.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/rows.h"

namespace moebius::reference {

/// Σ weights in the order of the canonical sum: chain c in [0, 16) adds the elements ≡ c (mod 16)
/// in ascending order from +0, then the chains are folded by halves (8, 4, 2, 1). The size is a
/// multiple of 16.
float SumOfWeights(absl::Span<const float> weights);

/// One row's state over one span.
struct SpanState {
  float m = 0;
  float l = 0;
};

/// The canonical sum of kernels/attention.h over one span for one query that sees its keys
/// `visible`, one operation after the other. `keys` and `values` hold the span's keys so far (at
/// least visible.end); key_block is B. Writes acc [values.width].
SpanState ComputeSpanState(absl::Span<const Bf16> query, Bf16Rows keys, Bf16Rows values,
                           VisibleKeys visible, int64_t key_block, float scale,
                           absl::Span<float> acc);

}  // namespace moebius::reference
