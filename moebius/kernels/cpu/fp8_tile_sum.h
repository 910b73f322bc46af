// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/fp8_block_sum.h"
#include "moebius/kernels/cpu/tile_block_sum.h"

namespace moebius {
namespace {

/// The adder of RunFp8BlockSum over a tile unit (tile_block_sum.h). The unit is configured as long
/// as it lives.
template <class Unit>
class TileAdder {
 public:
  explicit TileAdder(const BlockSumCall& product)
      : rows_(static_cast<const uint16_t*>(product.prepared_rows)), tiles_(product.num_rows) {
    ConfigureTiles<Unit>(tiles_.tile_rows);
  }
  ~TileAdder() { Unit::Release(); }
  TileAdder(const TileAdder&) = delete;
  TileAdder& operator=(const TileAdder&) = delete;

  void First(int64_t block, int64_t num_blocks, const uint16_t* weights, float* sums) const {
    Add(block, num_blocks, weights, nullptr, sums);
  }
  // Not in place: tiles may share rows, and each of them starts from the same former sums.
  void Next(int64_t block, int64_t num_blocks, const uint16_t* weights, const float* former,
            float* sums) const {
    Add(block, num_blocks, weights, former, sums);
  }

 private:
  static constexpr int64_t kSumStrideBytes = kPanelColumns * int64_t{sizeof(float)};

  void Add(int64_t block, int64_t num_blocks, const uint16_t* weights, const float* former,
           float* sums) const {
    int64_t tile = 0;
    for (; tile + 1 < tiles_.num_tiles; tile += 2) {
      AddPair(tile, block, num_blocks, weights, former, sums);
    }
    if (tile < tiles_.num_tiles) AddSingle(tile, block, num_blocks, weights, former, sums);
  }

  const uint16_t* RowsAt(int64_t tile, int64_t block) const {
    return rows_ + (block * tiles_.num_rows + tiles_.Begin(tile)) * kBlockDepth;
  }

  // Two tiles of rows with the decoded blocks.
  void AddPair(int64_t tile, int64_t block, int64_t num_blocks, const uint16_t* weights,
               const float* former, float* sums) const {
    const int64_t top_begin = tiles_.Begin(tile) * kPanelColumns;
    const int64_t bottom_begin = tiles_.Begin(tile + 1) * kPanelColumns;
    Start<0>(former, top_begin);
    Start<2>(former, bottom_begin);
    const uint16_t* top = RowsAt(tile, block);
    const uint16_t* bottom = RowsAt(tile + 1, block);
    const int64_t step = tiles_.num_rows * kBlockDepth;
    for (int64_t i = 0; i < num_blocks; ++i) {
      Unit::template Load<4>(top, kTileRowBytes);
      LoadTileWeights<Unit>(weights);
      Unit::template AddBlock<0, 4, 6>();
      Unit::template AddBlock<1, 4, 7>();
      Unit::template Load<5>(bottom, kTileRowBytes);
      Unit::template AddBlock<2, 5, 6>();
      Unit::template AddBlock<3, 5, 7>();
      top += step;
      bottom += step;
      weights += kPanelBlockSize;
    }
    Finish<0>(sums + top_begin);
    Finish<2>(sums + bottom_begin);
  }

  // The last tile of rows, where it has no partner.
  void AddSingle(int64_t tile, int64_t block, int64_t num_blocks, const uint16_t* weights,
                 const float* former, float* sums) const {
    const int64_t begin = tiles_.Begin(tile) * kPanelColumns;
    Start<0>(former, begin);
    const uint16_t* rows = RowsAt(tile, block);
    for (int64_t i = 0; i < num_blocks; ++i) {
      Unit::template Load<4>(rows, kTileRowBytes);
      LoadTileWeights<Unit>(weights);
      Unit::template AddBlock<0, 4, 6>();
      Unit::template AddBlock<1, 4, 7>();
      rows += tiles_.num_rows * kBlockDepth;
      weights += kPanelBlockSize;
    }
    Finish<0>(sums + begin);
  }

  template <int tile>
  MOEBIUS_ALWAYS_INLINE static void Start(const float* former, int64_t begin) {
    if (former == nullptr) {
      Unit::template Zero<tile>();
      Unit::template Zero<tile + 1>();
    } else {
      Unit::template Load<tile>(former + begin, kSumStrideBytes);
      Unit::template Load<tile + 1>(former + begin + kTileColumns, kSumStrideBytes);
    }
  }

  template <int tile>
  MOEBIUS_ALWAYS_INLINE static void Finish(float* sums) {
    Unit::template Store<tile>(sums, kSumStrideBytes);
    Unit::template Store<tile + 1>(sums + kTileColumns, kSumStrideBytes);
  }

  const uint16_t* const rows_;
  const RowTiles tiles_;
};

template <class V, class Unit>
void RunFp8TileBlockSum(const Fp8BlockSumCall& call) {
  if (call.product.num_rows == 0) return;
  TileAdder<Unit> adder(call.product);
  RunFp8BlockSum<V>(call, adder);
}

}  // namespace
}  // namespace moebius
