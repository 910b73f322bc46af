// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// A linear map of the reference path: out = in · Wᵀ + bias, weights as stored and widened to fp32,
/// every sum in double and rounded to fp32 once. Slow and plain: the measure, not the product.
///
/// Immutable after construction; `Apply` may run on any number of threads at once.
class ReferenceLinear {
 public:
  ReferenceLinear() = default;
  /// `weight` [num_outputs, num_inputs], row-major; `bias` [num_outputs] or empty.
  explicit ReferenceLinear(FloatRows weight, absl::Span<const float> bias = {});

  int64_t num_inputs() const { return num_inputs_; }
  int64_t num_outputs() const { return num_outputs_; }

  /// `in` [T, num_inputs] → `out` [T, num_outputs]. The two must not overlap.
  void Apply(FloatRows in, MutableFloatRows out) const;

 private:
  int64_t num_inputs_ = 0;
  int64_t num_outputs_ = 0;
  RowBatch<float> columns_;  // [num_inputs, num_outputs padded with zeros], the transpose
  Array<float> bias_;        // [num_outputs padded with zeros]
};

/// out[i] = in[i] / sqrt(mean(in²) + eps) · weight[i], the mean in double. In and out may be one.
void ReferenceRmsNorm(absl::Span<const float> in, absl::Span<const float> weight, double eps,
                      absl::Span<float> out);

/// x · σ(x), the activation of every family here.
float ReferenceSilu(float x);

}  // namespace moebius
