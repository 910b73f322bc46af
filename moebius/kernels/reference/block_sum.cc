// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/reference/block_sum.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/kernels/math.h"

namespace moebius::reference {
namespace {

constexpr size_t kBlockDepth = 32;

// Rounded once, denormals flushed in and out: an fp32 sum is exact in fma(x, 1, y).
float Add(float x, float y) { return FusedMultiplyAdd(x, 1.0f, y); }

float ToFp32(float x) { return x; }
float ToFp32(Bf16 x) { return ToFloat(x); }

template <class Weight>
float BlockSumOf(absl::Span<const Bf16> a, absl::Span<const Weight> w, float c) {
  MOEBIUS_CHECK_EQ(a.size(), w.size());
  const auto row = [&](size_t k) { return k < a.size() ? ToFloat(a[k]) : 0.0f; };
  const auto weight = [&](size_t k) { return k < w.size() ? ToFp32(w[k]) : 0.0f; };
  for (size_t block = 0; block < a.size(); block += kBlockDepth) {
    float even = 0;
    float odd = 0;
    for (size_t k = block; k < block + kBlockDepth; k += 2) {
      even = FusedMultiplyAdd(row(k), weight(k), even);
      odd = FusedMultiplyAdd(row(k + 1), weight(k + 1), odd);
    }
    c = Add(c, Add(even, odd));
  }
  return c;
}

}  // namespace

float BlockSum(absl::Span<const Bf16> a, absl::Span<const Bf16> w, float c) {
  return BlockSumOf(a, w, c);
}

float BlockSum(absl::Span<const Bf16> a, absl::Span<const float> w, float c) {
  return BlockSumOf(a, w, c);
}

Bf16 SwiGlu(float gate, float up) { return ToBf16((gate * Sigmoid(gate)) * up); }

}  // namespace moebius::reference
