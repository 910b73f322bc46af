// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/norm.h"

#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/kernels/cpu/row_vectors.h"

namespace moebius {
namespace {

constexpr int64_t kNumPartialSums = 32;
constexpr int kLanes = RowVector::kLanes;
using Float4 = RowVector::Float;

template <class In>
float SumOfSquares(const In* x, int64_t width) {
  Float4 sums[kNumPartialSums / kLanes] = {};
  int64_t i = 0;
  for (; i + kNumPartialSums <= width; i += kNumPartialSums) {
#pragma GCC unroll 8
    for (int v = 0; v < kNumPartialSums / kLanes; ++v) {
      const Float4 value = LoadVector(x + i + v * kLanes);
      sums[v] = sums[v] + value * value;
    }
  }
  float lanes[kNumPartialSums];
  for (int v = 0; v < kNumPartialSums / kLanes; ++v) StoreVector(lanes + v * kLanes, sums[v]);
  for (int64_t l = 0; i + l < width; ++l) {
    const float value = LoadElement(x + i + l);
    lanes[l] = lanes[l] + value * value;
  }
  for (int64_t half = kNumPartialSums / 2; half >= 1; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  return lanes[0];
}

template <class In, class Weight, class Out>
void NormalizeRows(Rows<const In> in, absl::Span<const Weight> weight, double eps, Rows<Out> out) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(weight.size()), in.width);
  MOEBIUS_CHECK_EQ(out.width, in.width);
  MOEBIUS_CHECK_EQ(out.num_rows, in.num_rows);
  const float epsilon = static_cast<float>(eps);
  for (int64_t t = 0; t < in.num_rows; ++t) {
    const In* const x = in.row(t);
    Out* const y = out.row(t);
    const float mean = SumOfSquares(x, in.width) / static_cast<float>(in.width);
    const float scale = 1.0f / __builtin_sqrtf(mean + epsilon);
    const Float4 scales = RowVector::Broadcast(scale);
    int64_t i = 0;
    for (; i + kLanes <= in.width; i += kLanes) {
      StoreVector(y + i, (LoadVector(x + i) * scales) * LoadVector(weight.data() + i));
    }
    for (; i < in.width; ++i) {
      StoreElement(y + i, (LoadElement(x + i) * scale) * LoadElement(weight.data() + i));
    }
  }
}

}  // namespace

void RmsNorm(FloatRows in, absl::Span<const Bf16> weight, double eps, MutableBf16Rows out) {
  NormalizeRows(in, weight, eps, out);
}

void RmsNorm(Bf16Rows in, absl::Span<const Bf16> weight, double eps, MutableBf16Rows out) {
  NormalizeRows(in, weight, eps, out);
}

void RmsNormFloat(FloatRows in, absl::Span<const float> weight, double eps, MutableFloatRows out) {
  NormalizeRows(in, weight, eps, out);
}

}  // namespace moebius
