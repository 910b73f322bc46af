// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/cpu/vector_math.h"

/// The element-wise half of the span kernel over vectors of any width: the same operations on the
/// same 16 chains. Each tier's file has its own copy (see vector.h).
namespace moebius {
namespace {

constexpr int kChains = 16;
// Rows whose state is brought up to date together: exponentials of their own, in vectors.
constexpr int kStateRows = 16;

// The chains folded by halves, 8, 4, 2, 1: chain c with chain c + half.
template <class V, class Combine>
MOEBIUS_ALWAYS_INLINE float FoldChains(typename V::Float (&chains)[kChains / V::kLanes],
                                       Combine combine) {
  for (int half = kChains / V::kLanes / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) chains[v] = combine(chains[v], chains[v + half]);
  }
  return V::FoldLanes(chains[0], combine);
}

// Which keys of a block a row sees.
enum class Seen { kAll, kFromFirst, kRange };

// All ones in the lanes of key `first` and the following that a row sees.
template <class V, Seen seen>
MOEBIUS_ALWAYS_INLINE typename V::Int SeenLanes(typename V::Int lanes, int32_t first,
                                                VisibleKeys keys) {
  const typename V::Int before_end = lanes + first < keys.end;
  if constexpr (seen == Seen::kFromFirst) return before_end;
  return before_end & (lanes + first >= keys.begin);
}

// The greatest of m and the scaled visible scores. Any order gives the same value but for the sign
// of a zero, which Exp ignores.
template <class V, Seen seen>
MOEBIUS_ALWAYS_INLINE float MaxOfVisible(const float* scores, float scale, VisibleKeys keys,
                                         typename V::Int lanes, float m) {
  constexpr int kVectors = kChains / V::kLanes;
  const typename V::Float hidden = V::Broadcast(-__builtin_inff());
  typename V::Float maxima[kVectors];
  for (int v = 0; v < kVectors; ++v) maxima[v] = hidden;
  for (int32_t j = keys.begin / kChains * kChains; j < keys.end; j += kChains) {
    for (int v = 0; v < kVectors; ++v) {
      const int32_t first = j + v * V::kLanes;
      typename V::Float s = V::Load(scores + first) * V::Broadcast(scale);
      if constexpr (seen != Seen::kAll) {
        s = V::Select(SeenLanes<V, seen>(lanes, first, keys), s, hidden);
      }
      maxima[v] = V::Max(s, maxima[v]);
    }
  }
  const float greatest =
      FoldChains<V>(maxima, [](typename V::Float a, typename V::Float b) { return V::Max(b, a); });
  return greatest > m ? greatest : m;
}

// P of one row, from the scores and the maximum that has become m: returns its sum.
template <class V, Seen seen>
MOEBIUS_ALWAYS_INLINE float WeighScores(const float* scores, float scale, float m, VisibleKeys keys,
                                        typename V::Int lanes, int64_t key_block,
                                        uint16_t* weights) {
  constexpr int kVectors = kChains / V::kLanes;
  typename V::Float chains[kVectors];
  for (int v = 0; v < kVectors; ++v) chains[v] = V::Zero();
  int32_t j = keys.begin / kChains * kChains;
  if constexpr (seen == Seen::kRange) {
    __builtin_memset(weights, 0, static_cast<size_t>(j) * sizeof(uint16_t));
  }
  for (; j < keys.end; j += kChains) {
    for (int v = 0; v < kVectors; ++v) {
      const int32_t first = j + v * V::kLanes;
      const typename V::Float s = V::Load(scores + first) * V::Broadcast(scale);
      // No visible score is above m.
      typename V::Float p = VectorExpNotAbove0<V>(s - V::Broadcast(m));
      if constexpr (seen != Seen::kAll) {
        p = V::Select(SeenLanes<V, seen>(lanes, first, keys), p, V::Zero());
      }
      chains[v] = chains[v] + p;
      V::StoreNormalBf16(weights + first, p);
    }
  }
  if constexpr (seen != Seen::kAll) {
    if (j < key_block) {
      __builtin_memset(weights + j, 0, static_cast<size_t>(key_block - j) * sizeof(uint16_t));
    }
  }
  return FoldChains<V>(chains, [](typename V::Float a, typename V::Float b) { return a + b; });
}

// What a row's state becomes: the former and the new maximum, and the sum of P.
struct RowChange {
  float former_m[kStateRows];
  float m[kStateRows];
  float sum[kStateRows];
};

template <class V, Seen seen>
MOEBIUS_ALWAYS_INLINE void WeighRow(const WeighBlockCall& call, int64_t row, typename V::Int lanes,
                                    int index, RowChange& change) {
  const float* scores = call.scores + row * call.key_block;
  const VisibleKeys keys = call.visible[row];
  const float m = MaxOfVisible<V, seen>(scores, call.scale, keys, lanes, call.m[row]);
  change.former_m[index] = call.m[row];
  change.m[index] = m;
  change.sum[index] = WeighScores<V, seen>(scores, call.scale, m, keys, lanes, call.key_block,
                                           call.weights + row * call.key_block);
  call.m[row] = m;
}

// alpha = e^(former m - m) and l = l · alpha + sum.
template <class V>
MOEBIUS_ALWAYS_INLINE void UpdateStates(const RowChange& change, int num_rows, float* l,
                                        float* alphas) {
  float new_l[kStateRows] = {};
  float new_alphas[kStateRows];
  __builtin_memcpy(new_l, l, static_cast<size_t>(num_rows) * sizeof(float));
  for (int i = 0; i < kStateRows; i += V::kLanes) {
    const typename V::Float alpha =
        VectorExpNotAbove0<V>(V::Load(change.former_m + i) - V::Load(change.m + i));
    V::Store(new_l + i, V::Load(new_l + i) * alpha + V::Load(change.sum + i));
    V::Store(new_alphas + i, alpha);
  }
  __builtin_memcpy(l, new_l, static_cast<size_t>(num_rows) * sizeof(float));
  __builtin_memcpy(alphas, new_alphas, static_cast<size_t>(num_rows) * sizeof(float));
}

template <class V>
void WeighBlock(const WeighBlockCall& call) {
  typename V::Int lanes = {};
  for (int i = 0; i < V::kLanes; ++i) lanes[i] = i;
  for (int64_t begin = 0; begin < call.num_rows; begin += kStateRows) {
    const int64_t left = call.num_rows - begin;
    const int num_rows = left < kStateRows ? static_cast<int>(left) : kStateRows;
    RowChange change = {};  // a row that sees nothing: e^0 = 1, and nothing to add
    for (int i = 0; i < num_rows; ++i) {
      const int64_t row = begin + i;
      const VisibleKeys keys = call.visible[row];
      if (keys.empty()) {
        __builtin_memset(call.weights + row * call.key_block, 0,
                         static_cast<size_t>(call.key_block) * sizeof(uint16_t));
      } else if (keys.begin == 0 && keys.end == call.key_block) {
        WeighRow<V, Seen::kAll>(call, row, lanes, i, change);
      } else if (keys.begin == 0) {
        WeighRow<V, Seen::kFromFirst>(call, row, lanes, i, change);
      } else {
        WeighRow<V, Seen::kRange>(call, row, lanes, i, change);
      }
    }
    UpdateStates<V>(change, num_rows, call.l + begin, call.alphas + begin);
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
