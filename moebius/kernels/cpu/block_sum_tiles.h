// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/kernel_calls.h"

/// The block sum over register tiles. A tile adds one block of 32 K to the sums c of a few rows and
/// all 32 columns: per element an even and an odd chain from +0, then c = c + (even + odd). How
/// many rows and columns a tile holds changes no element's order, so it never changes a bit.
///
/// Sums lie in `c` [num_rows, 32] fp32, in the first-level cache between blocks.
namespace moebius {
namespace {

/// Blocks of weights that are asked for ahead of their turn (16 KiB of bf16), for calls that memory
/// bounds: few rows, and more weights than the second-level cache surely keeps from the last call.
inline constexpr int kPrefetchBlocks = 8;
inline constexpr int64_t kPrefetchMaxRows = 8;
inline constexpr int64_t kPrefetchMinBlocks = 128;  // 256 KiB of bf16

/// Plain fp32 fused multiply-adds. V: vector with FusedMultiplyAdd*; Weights: how to read them.
/// The tile is kRows × (kVectors · lanes) columns.
template <class V, class Weights, int kRows, int kVectors>
MOEBIUS_ALWAYS_INLINE void AddBlockToTile(const float* rows, const typename Weights::Value* weights,
                                          float* c) {
  typename V::Float even[kRows][kVectors];
  typename V::Float odd[kRows][kVectors];
  MOEBIUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) even[r][v] = odd[r][v] = V::Zero();
  }
#pragma GCC unroll 2
  for (int j = 0; j < kBlockDepth / 2; ++j) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const auto pairs = Weights::Load(weights, j, v * V::kLanes);
      const typename V::Float even_weights = Weights::Even(pairs);
      const typename V::Float odd_weights = Weights::Odd(pairs);
      MOEBIUS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* row = rows + r * kBlockDepth + 2 * j;
        even[r][v] = Weights::MultiplyAdd(V::Broadcast(row[0]), even_weights, even[r][v]);
        odd[r][v] = Weights::MultiplyAdd(V::Broadcast(row[1]), odd_weights, odd[r][v]);
      }
    }
  }
  MOEBIUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* sum = c + r * kPanelColumns + v * V::kLanes;
      V::Store(sum, V::Load(sum) + (even[r][v] + odd[r][v]));
    }
  }
}

/// bf16 weights in adjacent pairs.
template <class V>
struct PairWeights {
  using Value = uint16_t;
  using Vector = V;
  static constexpr int kColumnStride = 2;  // values from column to column
  MOEBIUS_ALWAYS_INLINE static typename V::Bits Load(const uint16_t* weights, int j, int column) {
    return V::LoadPairs(weights + (j * kPanelColumns + column) * 2);
  }
  MOEBIUS_ALWAYS_INLINE static typename V::Float Even(typename V::Bits pairs) {
    return V::FirstOfPairs(pairs);
  }
  MOEBIUS_ALWAYS_INLINE static typename V::Float Odd(typename V::Bits pairs) {
    return V::SecondOfPairs(pairs);
  }
  MOEBIUS_ALWAYS_INLINE static typename V::Float MultiplyAdd(typename V::Float a,
                                                             typename V::Float w,
                                                             typename V::Float sum) {
    return V::FusedMultiplyAddBf16(a, w, sum);
  }
};

/// fp32 weights, [32 K, 32 columns] per block.
template <class V>
struct FloatWeights {
  using Value = float;
  using Vector = V;
  static constexpr int kColumnStride = 1;
  struct Pair {
    typename V::Float even;
    typename V::Float odd;
  };
  MOEBIUS_ALWAYS_INLINE static Pair Load(const float* weights, int j, int column) {
    const float* even = weights + 2 * j * kPanelColumns + column;
    return Pair{V::Load(even), V::Load(even + kPanelColumns)};
  }
  MOEBIUS_ALWAYS_INLINE static typename V::Float Even(const Pair& pair) { return pair.even; }
  MOEBIUS_ALWAYS_INLINE static typename V::Float Odd(const Pair& pair) { return pair.odd; }
  MOEBIUS_ALWAYS_INLINE static typename V::Float MultiplyAdd(typename V::Float a,
                                                             typename V::Float w,
                                                             typename V::Float sum) {
    return V::FusedMultiplyAdd(a, w, sum);
  }
};

/// kRows rows and all 32 columns of one block, in tiles of kVectors vectors.
template <class Weights, int kRows, int kVectors>
[[gnu::noinline]] void AddBlockToRows(const float* rows, const typename Weights::Value* weights,
                                      float* c) {
  using V = typename Weights::Vector;
  for (int column = 0; column < kPanelColumns; column += kVectors * V::kLanes) {
    AddBlockToTile<V, Weights, kRows, kVectors>(rows, weights + column * Weights::kColumnStride,
                                                c + column);
  }
}

/// Vectors per tile for a number of rows: as many chains as the registers hold, and at least eight,
/// which hide the latency of a fused multiply-add.
/// 16 registers of eight lanes: 1 × 32, 2 × 16, 3 × 16 columns, then 4 … 6 × 8.
template <class Weights>
struct NarrowTiles {
  using Value = typename Weights::Value;
  static constexpr int kMaxRows = 6;
  static void AddBlock(int num_rows, const float* rows, const Value* weights, float* c) {
    constexpr int kAll = 4;
    switch (num_rows) {
      case 1:
        return AddBlockToRows<Weights, 1, kAll>(rows, weights, c);
      case 2:
        return AddBlockToRows<Weights, 2, 2>(rows, weights, c);
      case 3:
        return AddBlockToRows<Weights, 3, 2>(rows, weights, c);
      case 4:
        return AddBlockToRows<Weights, 4, 1>(rows, weights, c);
      case 5:
        return AddBlockToRows<Weights, 5, 1>(rows, weights, c);
      default:
        return AddBlockToRows<Weights, 6, 1>(rows, weights, c);
    }
  }
};

/// 16 registers of four lanes, emulated fused multiply-adds: two rows keep the code small.
template <class Weights>
struct PortableTiles {
  using Value = typename Weights::Value;
  static constexpr int kMaxRows = 2;
  static void AddBlock(int num_rows, const float* rows, const Value* weights, float* c) {
    if (num_rows == 1) return AddBlockToRows<Weights, 1, 2>(rows, weights, c);
    return AddBlockToRows<Weights, 2, 1>(rows, weights, c);
  }
};

/// 32 registers of sixteen lanes: 1 … 6 rows × 32 columns.
template <class Weights>
struct WideTiles {
  using Value = typename Weights::Value;
  static constexpr int kMaxRows = 6;
  static void AddBlock(int num_rows, const float* rows, const Value* weights, float* c) {
    switch (num_rows) {
      case 1:
        return AddBlockToRows<Weights, 1, 2>(rows, weights, c);
      case 2:
        return AddBlockToRows<Weights, 2, 2>(rows, weights, c);
      case 3:
        return AddBlockToRows<Weights, 3, 2>(rows, weights, c);
      case 4:
        return AddBlockToRows<Weights, 4, 2>(rows, weights, c);
      case 5:
        return AddBlockToRows<Weights, 5, 2>(rows, weights, c);
      default:
        return AddBlockToRows<Weights, 6, 2>(rows, weights, c);
    }
  }
};

/// The bf16 dot instruction. V::Dot(sum, a, w): per lane sum = fma(a.high, w.high, sum), then
/// sum = fma(a.low, w.low, sum); with pairs formed within a chain that is the chain's order.
template <class V, int kRows>
[[gnu::noinline]] void AddBlockByDots(const uint32_t* rows, const uint16_t* weights, float* c) {
  constexpr int kVectors = kPanelColumns / V::kLanes;
  typename V::Float even[kRows][kVectors];
  typename V::Float odd[kRows][kVectors];
  MOEBIUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) even[r][v] = odd[r][v] = V::Zero();
  }
#pragma GCC unroll 2
  for (int j = 0; j < kBlockDepth / 4; ++j) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const uint16_t* pair_row = weights + (2 * j * kPanelColumns + v * V::kLanes) * 2;
      const typename V::Bits even_weights = V::LoadPairs(pair_row);
      const typename V::Bits odd_weights = V::LoadPairs(pair_row + 2 * kPanelColumns);
      MOEBIUS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const uint32_t* row = rows + r * (kBlockDepth / 2) + 2 * j;
        even[r][v] = V::Dot(even[r][v], V::BroadcastBits(row[0]), even_weights);
        odd[r][v] = V::Dot(odd[r][v], V::BroadcastBits(row[1]), odd_weights);
      }
    }
  }
  MOEBIUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* sum = c + r * kPanelColumns + v * V::kLanes;
      V::Store(sum, V::Load(sum) + (even[r][v] + odd[r][v]));
    }
  }
}

template <class V>
struct DotTiles {
  using Value = uint16_t;
  static constexpr int kMaxRows = 6;
  static void AddBlock(int num_rows, const uint32_t* rows, const uint16_t* weights, float* c) {
    switch (num_rows) {
      case 1:
        return AddBlockByDots<V, 1>(rows, weights, c);
      case 2:
        return AddBlockByDots<V, 2>(rows, weights, c);
      case 3:
        return AddBlockByDots<V, 3>(rows, weights, c);
      case 4:
        return AddBlockByDots<V, 4>(rows, weights, c);
      case 5:
        return AddBlockByDots<V, 5>(rows, weights, c);
      default:
        return AddBlockByDots<V, 6>(rows, weights, c);
    }
  }
};

/// Asks for a block of weights well before its turn: the hardware's prefetch stops at the end of a
/// page, and panels of few rows are bound by memory. An address past the end is harmless.
template <class Value>
MOEBIUS_ALWAYS_INLINE void PrefetchBlock(const Value* weights) {
  const char* const line = reinterpret_cast<const char*>(weights);
  for (uint64_t offset = 0; offset < kPanelBlockSize * sizeof(Value); offset += 64) {
    __builtin_prefetch(line + offset);
  }
}

MOEBIUS_ALWAYS_INLINE bool IsMemoryBound(int64_t num_rows, int64_t num_blocks) {
  return num_rows <= kPrefetchMaxRows && num_blocks >= kPrefetchMinBlocks;
}

/// All blocks of one panel for all prepared rows: c += their block sums. A prepared row has
/// `row_words` elements of RowWord per block.
template <class Tiles, class RowWord, int row_words>
void AddPanel(const RowWord* prepared, int64_t num_rows, int64_t num_blocks,
              const typename Tiles::Value* panel, bool is_memory_bound, float* c) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    const RowWord* rows = prepared + block * num_rows * row_words;
    const typename Tiles::Value* weights = panel + block * kPanelBlockSize;
    if (is_memory_bound) PrefetchBlock(weights + kPrefetchBlocks * kPanelBlockSize);
    for (int64_t r = 0; r < num_rows; r += Tiles::kMaxRows) {
      const int64_t left = num_rows - r;
      Tiles::AddBlock(static_cast<int>(left < Tiles::kMaxRows ? left : Tiles::kMaxRows),
                      rows + r * row_words, weights, c + r * kPanelColumns);
    }
  }
}

}  // namespace
}  // namespace moebius
