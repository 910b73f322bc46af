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

/// Asks for step `step` of `steps` equal parts of `bytes` bytes, so that what is asked for in one
/// go never fills the queue that the weights in hand wait in too. The hardware's own prefetch stops
/// at the end of a page. Addresses past an end are harmless.
template <int steps, int bytes>
MOEBIUS_ALWAYS_INLINE void AskFor(const void* ahead, int step) {
  constexpr int kLineBytes = 64;
  constexpr int kStepBytes = bytes / steps;
  constexpr int kSecondLevelCache = 2;
  const char* const part = static_cast<const char*>(ahead) + step * kStepBytes;
  if constexpr (kStepBytes >= kLineBytes) {
    MOEBIUS_UNROLL
    for (int line = 0; line < kStepBytes; line += kLineBytes) {
      __builtin_prefetch(part + line, 0, kSecondLevelCache);
    }
  } else {
    if (step % (kLineBytes / kStepBytes) == 0) __builtin_prefetch(part, 0, kSecondLevelCache);
  }
}

/// Plain fp32 fused multiply-adds over a tile of kRows × (kVectors · lanes) columns. V: vector with
/// FusedMultiplyAdd*; Weights: how to read them. kAsks: asks meanwhile for as many weights at
/// `ahead` as the tile reads.
template <class V, class Weights, int kRows, int kVectors, bool kAsks>
struct BlockTile {
  using Float = typename V::Float;
  using Value = typename Weights::Value;
  using Sums = Float[kRows][kVectors];
  static constexpr int kSteps = kBlockDepth / 2;
  static constexpr int kBytes =
      kVectors * V::kLanes * kBlockDepth * static_cast<int>(sizeof(Value));

  // Both chains side by side: each weight is loaded once.
  MOEBIUS_ALWAYS_INLINE static void AddBothChains(const float* rows, const Value* weights,
                                                  const Value* ahead, float* c) {
    Sums even;
    Sums odd;
    Clear(even);
    Clear(odd);
#pragma GCC unroll 2
    for (int j = 0; j < kSteps; ++j) {
      if constexpr (kAsks) AskFor<kSteps, kBytes>(ahead, j);
      MOEBIUS_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const auto pairs = Weights::Load(weights, j, v * V::kLanes);
        const Float even_weights = Weights::Even(pairs);
        const Float odd_weights = Weights::Odd(pairs);
        MOEBIUS_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const float* row = rows + r * kBlockDepth + 2 * j;
          even[r][v] = Weights::MultiplyAdd(V::Broadcast(row[0]), even_weights, even[r][v]);
          odd[r][v] = Weights::MultiplyAdd(V::Broadcast(row[1]), odd_weights, odd[r][v]);
        }
      }
    }
    Add(even, odd, c);
  }

  // The odd chains after the even ones: a tile of twice the columns fits the registers, so that a
  // row's element, once loaded, serves two vectors.
  MOEBIUS_ALWAYS_INLINE static void AddChainByChain(const float* rows, const Value* weights,
                                                    const Value* ahead, float* c) {
    Sums sums;
    AddChain<0>(rows, weights, ahead, sums);
    Sums even;
    MOEBIUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MOEBIUS_UNROLL
      for (int v = 0; v < kVectors; ++v) even[r][v] = sums[r][v];
    }
    AddChain<1>(rows, weights, ahead, sums);
    Add(even, sums, c);
  }

 private:
  MOEBIUS_ALWAYS_INLINE static void Clear(Sums& sums) {
    MOEBIUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MOEBIUS_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[r][v] = V::Zero();
    }
  }

  template <int chain>
  MOEBIUS_ALWAYS_INLINE static Float WeightsOf(const Value* weights, int j, int v) {
    const auto pairs = Weights::Load(weights, j, v * V::kLanes);
    return chain == 0 ? Weights::Even(pairs) : Weights::Odd(pairs);
  }
  template <int chain>
  MOEBIUS_ALWAYS_INLINE static void AddChain(const float* rows, const Value* weights,
                                             const Value* ahead, Sums& sums) {
    Clear(sums);
#pragma GCC unroll 2
    for (int j = 0; j < kSteps; ++j) {
      if constexpr (kAsks && chain == 0) AskFor<kSteps, kBytes>(ahead, j);
      Float w[kVectors];
      MOEBIUS_UNROLL
      for (int v = 0; v < kVectors; ++v) w[v] = WeightsOf<chain>(weights, j, v);
      MOEBIUS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Float x = V::Broadcast(rows[r * kBlockDepth + 2 * j + chain]);
        MOEBIUS_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[r][v] = Weights::MultiplyAdd(x, w[v], sums[r][v]);
      }
    }
  }

  MOEBIUS_ALWAYS_INLINE static void Add(const Sums& even, const Sums& odd, float* c) {
    MOEBIUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MOEBIUS_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        float* sum = c + r * kPanelColumns + v * V::kLanes;
        V::Store(sum, V::Load(sum) + (even[r][v] + odd[r][v]));
      }
    }
  }
};

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

enum class Chains { kBoth, kOneByOne };

template <class Weights, int kRows, int kVectors, Chains kChains, bool kAsks>
MOEBIUS_ALWAYS_INLINE void AddBlockByTiles(const float* rows,
                                           const typename Weights::Value* weights,
                                           const typename Weights::Value* ahead, float* c) {
  using V = typename Weights::Vector;
  using Tile = BlockTile<V, Weights, kRows, kVectors, kAsks>;
  for (int column = 0; column < kPanelColumns; column += kVectors * V::kLanes) {
    const typename Weights::Value* const tile = weights + column * Weights::kColumnStride;
    const typename Weights::Value* const asked = kAsks ? ahead + column * kBlockDepth : nullptr;
    if constexpr (kChains == Chains::kBoth) {
      Tile::AddBothChains(rows, tile, asked, c + column);
    } else {
      Tile::AddChainByChain(rows, tile, asked, c + column);
    }
  }
}

/// kRows rows and all 32 columns of one block, in tiles of kVectors vectors. Asks meanwhile for the
/// block at `ahead`, where that is not null.
template <class Weights, int kRows, int kVectors, Chains kChains = Chains::kBoth>
[[gnu::noinline]] void AddBlockToRows(const float* rows, const typename Weights::Value* weights,
                                      const typename Weights::Value* ahead, float* c) {
  if (ahead == nullptr) {
    AddBlockByTiles<Weights, kRows, kVectors, kChains, false>(rows, weights, nullptr, c);
  } else {
    AddBlockByTiles<Weights, kRows, kVectors, kChains, true>(rows, weights, ahead, c);
  }
}

/// Vectors per tile for a number of rows: as many chains as the registers hold, and at least eight,
/// which hide the latency of a fused multiply-add.
/// 16 registers of eight lanes: 1 × 32 and 2 × 16 columns with both chains, 3 and 4 × 16 one by
/// one. More rows at once were slower.
template <class Weights>
struct NarrowTiles {
  using Value = typename Weights::Value;
  static constexpr int kMaxRows = 4;
  static void AddBlock(int num_rows, const float* rows, const Value* weights, const Value* ahead,
                       float* c) {
    switch (num_rows) {
      case 1:
        return AddBlockToRows<Weights, 1, 4>(rows, weights, ahead, c);
      case 2:
        return AddBlockToRows<Weights, 2, 2>(rows, weights, ahead, c);
      case 3:
        return AddBlockToRows<Weights, 3, 2, Chains::kOneByOne>(rows, weights, ahead, c);
      default:
        return AddBlockToRows<Weights, 4, 2, Chains::kOneByOne>(rows, weights, ahead, c);
    }
  }
};

/// 16 registers of four lanes, emulated fused multiply-adds: two rows keep the code small.
template <class Weights>
struct PortableTiles {
  using Value = typename Weights::Value;
  static constexpr int kMaxRows = 2;
  static void AddBlock(int num_rows, const float* rows, const Value* weights, const Value* ahead,
                       float* c) {
    if (num_rows == 1) return AddBlockToRows<Weights, 1, 2>(rows, weights, ahead, c);
    return AddBlockToRows<Weights, 2, 1>(rows, weights, ahead, c);
  }
};

/// 32 registers of sixteen lanes: 1 … 6 rows × 32 columns.
template <class Weights>
struct WideTiles {
  using Value = typename Weights::Value;
  static constexpr int kMaxRows = 6;
  static void AddBlock(int num_rows, const float* rows, const Value* weights, const Value* ahead,
                       float* c) {
    switch (num_rows) {
      case 1:
        return AddBlockToRows<Weights, 1, 2>(rows, weights, ahead, c);
      case 2:
        return AddBlockToRows<Weights, 2, 2>(rows, weights, ahead, c);
      case 3:
        return AddBlockToRows<Weights, 3, 2>(rows, weights, ahead, c);
      case 4:
        return AddBlockToRows<Weights, 4, 2>(rows, weights, ahead, c);
      case 5:
        return AddBlockToRows<Weights, 5, 2>(rows, weights, ahead, c);
      default:
        return AddBlockToRows<Weights, 6, 2>(rows, weights, ahead, c);
    }
  }
};

/// The bf16 dot instruction. V::Dot(sum, a, w): per lane sum = fma(a.high, w.high, sum), then
/// sum = fma(a.low, w.low, sum); with pairs formed within a chain that is the chain's order.
/// Asks meanwhile for the block at `ahead`, where that is not null.
template <class V, int kRows, bool kAsks>
MOEBIUS_ALWAYS_INLINE void AddBlockByDotsTo(const uint32_t* rows, const uint16_t* weights,
                                            const uint16_t* ahead, float* c) {
  constexpr int kSteps = kBlockDepth / 4;
  constexpr int kVectors = kPanelColumns / V::kLanes;
  typename V::Float even[kRows][kVectors];
  typename V::Float odd[kRows][kVectors];
  MOEBIUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MOEBIUS_UNROLL
    for (int v = 0; v < kVectors; ++v) even[r][v] = odd[r][v] = V::Zero();
  }
#pragma GCC unroll 2
  for (int j = 0; j < kSteps; ++j) {
    if constexpr (kAsks) AskFor<kSteps, kPanelBlockSize * 2>(ahead, j);
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

template <class V, int kRows>
[[gnu::noinline]] void AddBlockByDots(const uint32_t* rows, const uint16_t* weights,
                                      const uint16_t* ahead, float* c) {
  if (ahead == nullptr) return AddBlockByDotsTo<V, kRows, false>(rows, weights, nullptr, c);
  AddBlockByDotsTo<V, kRows, true>(rows, weights, ahead, c);
}

template <class V>
struct DotTiles {
  using Value = uint16_t;
  static constexpr int kMaxRows = 6;
  static void AddBlock(int num_rows, const uint32_t* rows, const uint16_t* weights,
                       const uint16_t* ahead, float* c) {
    switch (num_rows) {
      case 1:
        return AddBlockByDots<V, 1>(rows, weights, ahead, c);
      case 2:
        return AddBlockByDots<V, 2>(rows, weights, ahead, c);
      case 3:
        return AddBlockByDots<V, 3>(rows, weights, ahead, c);
      case 4:
        return AddBlockByDots<V, 4>(rows, weights, ahead, c);
      case 5:
        return AddBlockByDots<V, 5>(rows, weights, ahead, c);
      default:
        return AddBlockByDots<V, 6>(rows, weights, ahead, c);
    }
  }
};

/// What a call asks for while it reads `panels`, block beside block; null where memory does not
/// bound it.
template <class Value>
MOEBIUS_ALWAYS_INLINE const Value* BlocksAhead(const Value* panels, int64_t num_rows,
                                               int64_t num_blocks) {
  const bool is_memory_bound = num_rows <= kPrefetchMaxRows && num_blocks >= kPrefetchMinBlocks;
  return is_memory_bound ? panels + kPrefetchBlocks * kPanelBlockSize : nullptr;
}

/// All blocks of one panel for all prepared rows: c += their block sums. A prepared row has
/// `row_words` elements of RowWord per block. Asks for as many blocks from `ahead` on, where that
/// is not null.
template <class Tiles, class RowWord, int row_words>
void AddPanel(const RowWord* prepared, int64_t num_rows, int64_t num_blocks,
              const typename Tiles::Value* panel, const typename Tiles::Value* ahead, float* c) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    const RowWord* rows = prepared + block * num_rows * row_words;
    const typename Tiles::Value* weights = panel + block * kPanelBlockSize;
    const typename Tiles::Value* asked = ahead;  // by the first rows
    for (int64_t r = 0; r < num_rows; r += Tiles::kMaxRows) {
      const int64_t left = num_rows - r;
      Tiles::AddBlock(static_cast<int>(left < Tiles::kMaxRows ? left : Tiles::kMaxRows),
                      rows + r * row_words, weights, asked, c + r * kPanelColumns);
      asked = nullptr;
    }
    if (ahead != nullptr) ahead += kPanelBlockSize;
  }
}

}  // namespace
}  // namespace moebius
