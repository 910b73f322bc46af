// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/reference/block_sum.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

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

float Fp8BlockSum(absl::Span<const Bf16> a, const Fp8Rows& w, int64_t row, float c) {
  const int64_t depth = w.codes.width;
  for (int64_t begin = 0, end = 0; begin < depth; begin = end) {
    const int64_t left_of_block = w.block_columns - (w.column_offset + begin) % w.block_columns;
    end = std::min(depth, begin + left_of_block);
    std::vector<Bf16> values;
    for (int64_t k = begin; k < end; ++k) values.push_back(Fp8ToBf16(w.codes.row(row)[k]));
    const float sum = BlockSum(a.subspan(static_cast<size_t>(begin), values.size()), values, 0.0f);
    c = FusedMultiplyAdd(w.scale(row, begin), sum, c);
  }
  return c;
}

Bf16 SwiGlu(float gate, float up) { return ToBf16((gate * Sigmoid(gate)) * up); }

}  // namespace moebius::reference
