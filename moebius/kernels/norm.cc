// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/norm.h"

#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/kernels/cpu/vector_portable.h"
#include "moebius/tensor/bf16.h"

namespace moebius {
namespace {

constexpr int64_t kNumPartialSums = 32;
constexpr int kLanes = PortableVector::kLanes;
using Float4 = PortableVector::Float;

float ToFp32(float x) { return x; }
float ToFp32(Bf16 x) { return ToFloat(x); }
void Assign(float value, float& out) { out = value; }
void Assign(float value, Bf16& out) { out = ToBf16(value); }

Float4 LoadFour(const float* p) { return PortableVector::Load(p); }
Float4 LoadFour(const Bf16* p) {
  return PortableVector::LoadBf16(reinterpret_cast<const uint16_t*>(p));
}
void StoreFour(float* p, Float4 v) { PortableVector::Store(p, v); }
void StoreFour(Bf16* p, Float4 v) { PortableVector::StoreBf16(reinterpret_cast<uint16_t*>(p), v); }

template <class In>
float SumOfSquares(const In* x, int64_t width) {
  Float4 sums[kNumPartialSums / kLanes] = {};
  int64_t i = 0;
  for (; i + kNumPartialSums <= width; i += kNumPartialSums) {
#pragma GCC unroll 8
    for (int v = 0; v < kNumPartialSums / kLanes; ++v) {
      const Float4 value = LoadFour(x + i + v * kLanes);
      sums[v] = sums[v] + value * value;
    }
  }
  float lanes[kNumPartialSums];
  for (int v = 0; v < kNumPartialSums / kLanes; ++v) StoreFour(lanes + v * kLanes, sums[v]);
  for (int64_t l = 0; i + l < width; ++l) {
    const float value = ToFp32(x[i + l]);
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
    const Float4 scales = PortableVector::Broadcast(scale);
    int64_t i = 0;
    for (; i + kLanes <= in.width; i += kLanes) {
      StoreFour(y + i, (LoadFour(x + i) * scales) * LoadFour(weight.data() + i));
    }
    for (; i < in.width; ++i) {
      Assign((ToFp32(x[i]) * scale) * ToFp32(weight[static_cast<size_t>(i)]), y[i]);
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
