// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/cpu/vector_math.h"
#include "moebius/kernels/kernel_calls.h"

/// The softmax of the span kernel over vectors of any width: the same operations on the
/// same 16 chains. Each tier's file has its own copy (see vector.h).
namespace moebius {
namespace {

inline constexpr int kChains = 16;
// Rows that are taken together: what their chains fold to is folded for all of them in vectors.
inline constexpr int kStateRows = 16;

// Per row the 16 chains folded to as many as a vector has lanes.
template <class V>
using RowChains = typename V::Float[kStateRows];

// 16 chains to one vector by halves, chain c with chain c + half; the lanes are folded later.
template <class V, class Combine>
MOEBIUS_ALWAYS_INLINE typename V::Float FoldVectors(
    typename V::Float (&chains)[kChains / V::kLanes], Combine combine) {
  for (int half = kChains / V::kLanes / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) chains[v] = combine(chains[v], chains[v + half]);
  }
  return chains[0];
}

// The rest of the fold: result[i] of row i.
template <class V, class Combine>
MOEBIUS_ALWAYS_INLINE void FoldRowChains(const RowChains<V>& chains, Combine combine,
                                         float* result) {
  for (int begin = 0; begin < kStateRows; begin += V::kLanes) {
    typename V::Float rows[V::kLanes];
    MOEBIUS_UNROLL
    for (int i = 0; i < V::kLanes; ++i) rows[i] = chains[begin + i];
    V::Store(result + begin, V::FoldRows(rows, combine));
  }
}

// Which keys of a block a row sees.
enum class Seen { kAll, kFromFirst, kRange };
template <Seen seen>
struct SeenConstant {
  static constexpr Seen value = seen;
};

// All ones in the lanes of key `first` and the following that a row sees.
template <class V, Seen seen>
MOEBIUS_ALWAYS_INLINE typename V::Int SeenLanes(typename V::Int lanes, int32_t first,
                                                VisibleKeys keys) {
  const typename V::Int before_end = lanes + first < keys.end;
  if constexpr (seen == Seen::kFromFirst) return before_end;
  return before_end & (lanes + first >= keys.begin);
}

// Scales the scores of a row and returns the greatest visible one, in as many chains as a vector
// has lanes. Any order gives the same value but for the sign of a zero, which Exp ignores.
template <class V, Seen seen>
MOEBIUS_ALWAYS_INLINE typename V::Float ScaleAndMax(float* scores, float scale, VisibleKeys keys,
                                                    typename V::Int lanes) {
  constexpr int kVectors = kChains / V::kLanes;
  const typename V::Float hidden = V::Broadcast(-__builtin_inff());
  typename V::Float maxima[kVectors];
  for (int v = 0; v < kVectors; ++v) maxima[v] = hidden;
  for (int32_t j = keys.begin / kBlockDepth * kBlockDepth; j < keys.end; j += kBlockDepth) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kBlockDepth / V::kLanes; ++v) {
      const int32_t first = j + v * V::kLanes;
      typename V::Float s = V::Load(scores + first) * V::Broadcast(scale);
      V::Store(scores + first, s);
      if constexpr (seen != Seen::kAll) {
        s = V::Select(SeenLanes<V, seen>(lanes, first, keys), s, hidden);
      }
      maxima[v % kVectors] = V::Max(s, maxima[v % kVectors]);
    }
  }
  return FoldVectors<V>(maxima,
                        [](typename V::Float a, typename V::Float b) { return V::Max(b, a); });
}

// Where P of one row goes: from block to block of 32 keys `step` values further.
template <class V, RowForm form>
struct WeightRow {
  using Value = std::conditional_t<form == RowForm::kFloat, float, uint16_t>;
  Value* values;
  int64_t step;

  WeightRow(const WeighBlockCall& call, int64_t row)
      : values(static_cast<Value*>(call.weights) + row * kBlockDepth),
        step(call.num_rows * kBlockDepth) {}
  MOEBIUS_ALWAYS_INLINE Value* Block(int64_t key) const {
    return values + key / kBlockDepth * step;
  }
  static constexpr int kVectors = kBlockDepth / V::kLanes;
  MOEBIUS_ALWAYS_INLINE static void StoreBlock(Value* to, const typename V::Float (&p)[kVectors]) {
    if constexpr (form == RowForm::kBf16) {
      V::StoreNormalBf16Block(to, p);
    } else if constexpr (form == RowForm::kBf16WithinChain) {
      V::StoreNormalBf16BlockWithinChain(to, p);
    } else {
      MOEBIUS_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        V::Store(to + v * V::kLanes, V::AsFloat(V::RoundToBf16(p[v]) << 16));
      }
    }
  }
  MOEBIUS_ALWAYS_INLINE void Clear(int64_t begin, int64_t end) const {
    for (int64_t key = begin; key < end; key += kBlockDepth) {
      __builtin_memset(Block(key), 0, kBlockDepth * sizeof(Value));
    }
  }
};

// P of `count` blocks of 32 keys from `key` on: adds it to the chains.
template <class V, Seen seen, int count, class Weights>
MOEBIUS_ALWAYS_INLINE void WeighKeys(const float* scores, float m, VisibleKeys keys,
                                     typename V::Int lanes, int32_t key,
                                     typename V::Float (&chains)[kChains / V::kLanes],
                                     const Weights& weights) {
  constexpr int kBlockVectors = kBlockDepth / V::kLanes;
  constexpr int kVectors = count * kBlockVectors;
  typename V::Float p[kVectors];
  MOEBIUS_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    // No visible score is above m.
    p[v] = V::Load(scores + key + v * V::kLanes) - V::Broadcast(m);
  }
  VectorsExpNotAbove0<V, kVectors>(p);
  MOEBIUS_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (seen != Seen::kAll) {
      p[v] = V::Select(SeenLanes<V, seen>(lanes, key + v * V::kLanes, keys), p[v], V::Zero());
    }
    auto& chain = chains[v % (kChains / V::kLanes)];
    chain = chain + p[v];
  }
  MOEBIUS_UNROLL
  for (int b = 0; b < count; ++b) {
    typename V::Float block[kBlockVectors];
    MOEBIUS_UNROLL
    for (int v = 0; v < kBlockVectors; ++v) block[v] = p[b * kBlockVectors + v];
    Weights::StoreBlock(weights.Block(key) + b * weights.step, block);
  }
}

// P of one row, from the scaled scores and the maximum that has become m: returns its sum in as
// many chains as a vector has lanes.
template <class V, Seen seen, class Weights>
MOEBIUS_ALWAYS_INLINE typename V::Float WeighScores(const float* scores, float m, VisibleKeys keys,
                                                    typename V::Int lanes, int64_t key_block,
                                                    const Weights& weights) {
  constexpr int kVectors = kChains / V::kLanes;
  constexpr int kBlocksAtOnce = V::kLanes == kChains ? 2 : 1;
  typename V::Float chains[kVectors];
  for (int v = 0; v < kVectors; ++v) chains[v] = V::Zero();
  int32_t j = keys.begin / kBlockDepth * kBlockDepth;
  if constexpr (seen == Seen::kRange) weights.Clear(0, j);
  for (; j + (kBlocksAtOnce - 1) * kBlockDepth < keys.end; j += kBlocksAtOnce * kBlockDepth) {
    WeighKeys<V, seen, kBlocksAtOnce>(scores, m, keys, lanes, j, chains, weights);
  }
  if constexpr (kBlocksAtOnce > 1) {
    if (j < keys.end) {
      WeighKeys<V, seen, 1>(scores, m, keys, lanes, j, chains, weights);
      j += kBlockDepth;
    }
  }
  if constexpr (seen != Seen::kAll) weights.Clear(j, key_block);
  return FoldVectors<V>(chains, [](typename V::Float a, typename V::Float b) { return a + b; });
}

// Calls `work(constant of Seen)` for a row that sees a key.
template <class Work>
MOEBIUS_ALWAYS_INLINE void WithSeen(VisibleKeys keys, int64_t key_block, Work work) {
  if (keys.begin == 0 && keys.end == key_block) {
    work(SeenConstant<Seen::kAll>());
  } else if (keys.begin == 0) {
    work(SeenConstant<Seen::kFromFirst>());
  } else {
    work(SeenConstant<Seen::kRange>());
  }
}

// Up to kStateRows rows from `begin` on, in steps of about a row's work each. All maxima come
// before the first exponential, so that no row waits for a fold.
template <class V, RowForm form>
class RowSoftmax {
 public:
  explicit RowSoftmax(const WeighBlockCall& call) : call_(call) {
    for (int i = 0; i < V::kLanes; ++i) lanes_[i] = i;
  }

  void Start(int64_t begin) {
    const int64_t left = call_.num_rows - begin;
    begin_ = begin;
    num_rows_ = left < kStateRows ? static_cast<int>(left) : kStateRows;
    for (int i = 0; i < kStateRows; ++i) {
      chains_[i] = V::Broadcast(-__builtin_inff());
      former_m_[i] = 0;
    }
  }

  void Run(int64_t begin) {
    Start(begin);
    for (int i = 0; i < num_rows_; ++i) TakeMaximum(i);
    FoldMaxima();
    for (int i = 0; i < num_rows_; ++i) Weigh(i);
    FoldSums();
  }

  int num_steps() const { return 2 * num_rows_ + 2; }
  void Step(int step) {
    if (step < num_rows_) return TakeMaximum(step);
    if (step == num_rows_) return FoldMaxima();
    if (step <= 2 * num_rows_) return Weigh(step - num_rows_ - 1);
    FoldSums();
  }

 private:
  using Float = typename V::Float;

  VisibleKeys keys(int i) const { return call_.visible[begin_ + i]; }
  float* scores(int i) const { return call_.scores + (begin_ + i) * call_.key_block; }

  MOEBIUS_ALWAYS_INLINE void TakeMaximum(int i) {
    if (keys(i).empty()) return;
    WithSeen(keys(i), call_.key_block, [&](auto seen) {
      chains_[i] = ScaleAndMax<V, seen.value>(scores(i), call_.scale, keys(i), lanes_);
    });
  }

  MOEBIUS_ALWAYS_INLINE void FoldMaxima() {
    __builtin_memcpy(former_m_, call_.m + begin_, static_cast<size_t>(num_rows_) * sizeof(float));
    FoldRowChains<V>(
        chains_, [](Float a, Float b) { return V::Max(b, a); }, m_);
    for (int i = 0; i < kStateRows; i += V::kLanes) {
      V::Store(m_ + i, V::Max(V::Load(m_ + i), V::Load(former_m_ + i)));
    }
    __builtin_memcpy(call_.m + begin_, m_, static_cast<size_t>(num_rows_) * sizeof(float));
    for (int i = 0; i < kStateRows; ++i) chains_[i] = V::Zero();
  }

  MOEBIUS_ALWAYS_INLINE void Weigh(int i) {
    const WeightRow<V, form> weights(call_, begin_ + i);
    if (keys(i).empty()) {
      former_m_[i] = m_[i] = 0;
      weights.Clear(0, call_.key_block);
      return;
    }
    WithSeen(keys(i), call_.key_block, [&](auto seen) {
      chains_[i] =
          WeighScores<V, seen.value>(scores(i), m_[i], keys(i), lanes_, call_.key_block, weights);
    });
  }

  // alpha = e^(former m - m) and l = l · alpha + sum. Of a row that sees nothing: e^0 = 1, and
  // nothing to add.
  MOEBIUS_ALWAYS_INLINE void FoldSums() {
    float sums[kStateRows];
    FoldRowChains<V>(
        chains_, [](Float a, Float b) { return a + b; }, sums);
    float l[kStateRows] = {};
    float alphas[kStateRows];
    __builtin_memcpy(l, call_.l + begin_, static_cast<size_t>(num_rows_) * sizeof(float));
    for (int i = 0; i < kStateRows; i += V::kLanes) {
      Float alpha[1] = {V::Load(former_m_ + i) - V::Load(m_ + i)};
      VectorsExpNotAbove0<V, 1>(alpha);
      V::Store(l + i, V::Load(l + i) * alpha[0] + V::Load(sums + i));
      V::Store(alphas + i, alpha[0]);
    }
    __builtin_memcpy(call_.l + begin_, l, static_cast<size_t>(num_rows_) * sizeof(float));
    __builtin_memcpy(call_.alphas + begin_, alphas, static_cast<size_t>(num_rows_) * sizeof(float));
  }

  const WeighBlockCall& call_;
  int64_t begin_ = 0;
  int num_rows_ = 0;
  typename V::Int lanes_ = {};
  RowChains<V> chains_;
  float former_m_[kStateRows];
  float m_[kStateRows];
};

template <class V, RowForm form>
void WeighBlockAs(const WeighBlockCall& call) {
  RowSoftmax<V, form> rows(call);
  for (int64_t begin = 0; begin < call.num_rows; begin += kStateRows) rows.Run(begin);
}

template <class V>
void WeighBlock(const WeighBlockCall& call) {
  switch (call.form) {
    case RowForm::kBf16:
      return WeighBlockAs<V, RowForm::kBf16>(call);
    case RowForm::kBf16WithinChain:
      return WeighBlockAs<V, RowForm::kBf16WithinChain>(call);
    case RowForm::kFloat:
      return WeighBlockAs<V, RowForm::kFloat>(call);
  }
}

template <class V>
inline constexpr AttentionKernels kAttentionKernels = {.weigh_block = WeighBlock<V>};

}  // namespace
}  // namespace moebius
