// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/cpu/vector_math.h"
#include "moebius/kernels/math.h"

/// The element-wise half of the span kernel over vectors of any width: the same operations on the
/// same 16 chains. Each tier's file has its own copy (see vector.h).
namespace moebius {
namespace {

constexpr int kChains = 16;

// Σ of the chains, folded by halves: 8, 4, 2, 1.
template <class V>
MOEBIUS_ALWAYS_INLINE float FoldChains(const typename V::Float (&chains)[kChains / V::kLanes]) {
  float sums[kChains];
  for (int v = 0; v < kChains / V::kLanes; ++v) V::Store(sums + v * V::kLanes, chains[v]);
  for (int half = kChains / 2; half > 0; half /= 2) {
    for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
  }
  return sums[0];
}

// All ones in the lanes of key `first` and the following that a row sees. kFromFirst: its keys
// begin at 0.
template <class V, bool kFromFirst>
MOEBIUS_ALWAYS_INLINE typename V::Int SeenLanes(typename V::Int lanes, int32_t first,
                                                VisibleKeys keys) {
  const typename V::Int before_end = lanes + first < keys.end;
  if constexpr (kFromFirst) return before_end;
  return before_end & (lanes + first >= keys.begin);
}

// The greatest of m and the scaled visible scores. Any order gives the same value but for the sign
// of a zero, which Exp ignores.
template <class V, bool kFromFirst>
MOEBIUS_ALWAYS_INLINE float MaxOfVisible(const float* scores, float scale, VisibleKeys keys,
                                         typename V::Int lanes, float m) {
  constexpr int kVectors = kChains / V::kLanes;
  const typename V::Float hidden = V::Broadcast(-__builtin_inff());
  typename V::Float maxima[kVectors];
  for (int v = 0; v < kVectors; ++v) maxima[v] = hidden;
  for (int32_t j = keys.begin / kChains * kChains; j < keys.end; j += kChains) {
    for (int v = 0; v < kVectors; ++v) {
      const int32_t first = j + v * V::kLanes;
      const typename V::Float s = V::Load(scores + first) * V::Broadcast(scale);
      const typename V::Float seen =
          V::Select(SeenLanes<V, kFromFirst>(lanes, first, keys), s, hidden);
      maxima[v] = V::Select(seen > maxima[v], seen, maxima[v]);
    }
  }
  float candidates[kChains];
  for (int v = 0; v < kVectors; ++v) V::Store(candidates + v * V::kLanes, maxima[v]);
  for (const float candidate : candidates) m = candidate > m ? candidate : m;
  return m;
}

template <class V, bool kFromFirst>
MOEBIUS_ALWAYS_INLINE void WeighRow(const WeighBlockCall& call, int64_t row) {
  constexpr int kVectors = kChains / V::kLanes;
  const float* scores = call.scores + row * call.key_block;
  uint16_t* weights = call.weights + row * call.key_block;
  const VisibleKeys keys = call.visible[row];
  if (keys.empty()) {
    __builtin_memset(weights, 0, static_cast<size_t>(call.key_block) * sizeof(uint16_t));
    call.alphas[row] = 1.0f;
    return;
  }
  typename V::Int lanes = {};
  for (int i = 0; i < V::kLanes; ++i) lanes[i] = i;
  const float m = MaxOfVisible<V, kFromFirst>(scores, call.scale, keys, lanes, call.m[row]);

  typename V::Float chains[kVectors];
  for (int v = 0; v < kVectors; ++v) chains[v] = V::Zero();
  int32_t j = keys.begin / kChains * kChains;
  __builtin_memset(weights, 0, static_cast<size_t>(j) * sizeof(uint16_t));
  for (; j < keys.end; j += kChains) {
    for (int v = 0; v < kVectors; ++v) {
      const int32_t first = j + v * V::kLanes;
      const typename V::Float s = V::Load(scores + first) * V::Broadcast(call.scale);
      const typename V::Float p = V::Select(SeenLanes<V, kFromFirst>(lanes, first, keys),
                                            VectorExp<V>(s - V::Broadcast(m)), V::Zero());
      chains[v] = chains[v] + p;
      V::StoreBf16(weights + first, p);
    }
  }
  if (j < call.key_block) {
    __builtin_memset(weights + j, 0, static_cast<size_t>(call.key_block - j) * sizeof(uint16_t));
  }
  const float alpha = Exp(call.m[row] - m);
  call.l[row] = call.l[row] * alpha + FoldChains<V>(chains);
  call.m[row] = m;
  call.alphas[row] = alpha;
}

template <class V>
void WeighBlock(const WeighBlockCall& call) {
  for (int64_t row = 0; row < call.num_rows; ++row) {
    if (call.visible[row].begin == 0) {
      WeighRow<V, true>(call, row);
    } else {
      WeighRow<V, false>(call, row);
    }
  }
}

template <class V>
void Rescale(const RescaleCall& call) {
  for (int64_t row = 0; row < call.num_rows; ++row) {
    if (call.visible[row].empty()) continue;
    const float* products = call.products + row * call.products_stride;
    float* acc = call.acc + row * call.acc_stride;
    const typename V::Float alpha = V::Broadcast(call.alphas[row]);
    int64_t i = 0;
    for (; i + V::kLanes <= call.width; i += V::kLanes) {
      V::Store(acc + i, V::FusedMultiplyAdd(V::Load(acc + i), alpha, V::Load(products + i)));
    }
    if (i == call.width) continue;
    float tail_acc[V::kLanes] = {};
    float tail_products[V::kLanes] = {};
    const size_t tail_bytes = static_cast<size_t>(call.width - i) * sizeof(float);
    __builtin_memcpy(tail_acc, acc + i, tail_bytes);
    __builtin_memcpy(tail_products, products + i, tail_bytes);
    V::Store(tail_acc, V::FusedMultiplyAdd(V::Load(tail_acc), alpha, V::Load(tail_products)));
    __builtin_memcpy(acc + i, tail_acc, tail_bytes);
  }
}

template <class V>
inline constexpr AttentionKernels kAttentionKernels = {.weigh_block = WeighBlock<V>,
                                                       .rescale = Rescale<V>};

}  // namespace
}  // namespace moebius
