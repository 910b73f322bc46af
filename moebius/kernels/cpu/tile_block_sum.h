// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/inline.h"
#include "moebius/kernels/kernel_calls.h"

/// The block sum over a tile unit: registers of up to 16 rows of 64 bytes, and one instruction that
/// takes the sums of up to 16 rows and 16 columns through one block of 32 K. The sums of a call
/// stay in their tiles over all of K.
///
/// Unit: Configure, Release, and by tile number Zero, Load, Store and AddBlock<sums, rows,
/// weights>. Text of its own, so that a CPU without tiles tests it over an emulated unit.
namespace moebius {
namespace {

/// Rows of a tile, and bytes of its row: 16 sums in fp32, or one row's or column's 32 K in bf16.
inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileColumns = 16;
/// bf16 values from one row of pairs of a panel to the next, and from its left half to its right.
inline constexpr int kPairRowSize = 2 * kPanelColumns;
inline constexpr int kRightHalf = 2 * kTileColumns;

/// What a unit is told before it is used: the operand of `ldtilecfg`.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // by tile
  uint8_t num_rows[16] = {};    // by tile
};
static_assert(sizeof(TileConfig) == 64);

/// Tiles 0 … 3 hold sums, 4 and 5 rows, 6 and 7 weights: 32 K of the left and the right 16 columns.
inline constexpr int kNumTiles = 8;
inline constexpr int kFirstWeightTile = 6;

/// Blocks that few rows ask for ahead of their turn: 16 KiB of weights.
inline constexpr int64_t kTileBlocksAhead = 8;
inline constexpr int64_t kLineBytes = 64;
inline constexpr int64_t kBlockLines = kPanelBlockSize * int64_t{sizeof(uint16_t)} / kLineBytes;

/// How a call's rows are cut: as few tiles as hold them, all of the same number of rows, so that
/// one configuration serves the call. The last one starts early rather than being shorter; rows
/// that two tiles share get the same sums twice.
struct RowTiles {
  int64_t num_rows;
  int64_t num_tiles;
  int64_t tile_rows;

  explicit RowTiles(int64_t count)
      : num_rows(count),
        num_tiles((count + kTileRows - 1) / kTileRows),
        tile_rows((count + num_tiles - 1) / num_tiles) {}
  int64_t Begin(int64_t tile) const {
    const int64_t even = tile * tile_rows;
    return even < num_rows - tile_rows ? even : num_rows - tile_rows;
  }
  // Rows at the tile's beginning that the tile before has, too.
  int64_t NumShared(int64_t tile) const { return tile * tile_rows - Begin(tile); }
};

template <class Unit>
MOEBIUS_ALWAYS_INLINE void ConfigureTiles(int64_t tile_rows) {
  TileConfig config;
  for (int tile = 0; tile < kNumTiles; ++tile) {
    config.row_bytes[tile] = kTileRowBytes;
    config.num_rows[tile] =
        static_cast<uint8_t>(tile < kFirstWeightTile ? tile_rows : kBlockDepth / 2);
  }
  Unit::Configure(config);
}

/// A panel's block into the weight tiles.
template <class Unit>
MOEBIUS_ALWAYS_INLINE void LoadTileWeights(const uint16_t* block) {
  constexpr int64_t kStrideBytes = kPairRowSize * int64_t{sizeof(uint16_t)};
  Unit::template Load<6>(block, kStrideBytes);
  Unit::template Load<7>(block + kRightHalf, kStrideBytes);
}

/// Rows as they are, 32 bf16 values per block.
MOEBIUS_ALWAYS_INLINE void CopyRowBlocks(const PrepareRowsCall& call) {
  uint16_t* const prepared = static_cast<uint16_t*>(call.prepared);
  ForEachRowBlock(call, [&](int64_t slot, const uint16_t* source, int64_t count) {
    uint16_t* const target = prepared + slot * kBlockDepth;
    if (count == kBlockDepth) {
      __builtin_memcpy(target, source, kBlockDepth * sizeof(uint16_t));
    } else {
      __builtin_memset(target, 0, kBlockDepth * sizeof(uint16_t));
      __builtin_memcpy(target, source, static_cast<uint64_t>(count) * sizeof(uint16_t));
    }
  });
}

/// Nothing to do beside a block sum.
struct Nothing {
  MOEBIUS_ALWAYS_INLINE void operator()() const {}
};

/// The rows [row_begin, row_end) of a call. V: the vector of its epilogues. `beside` is called once
/// for each block of each pass over a panel: what it does in vectors runs while the unit works.
template <class V, class Unit, class Beside = Nothing>
class TileBlockSum {
 public:
  TileBlockSum(const BlockSumCall& call, int64_t row_begin, int64_t row_end, Beside beside = {})
      : call_(call),
        beside_(beside),
        row_begin_(row_begin),
        tiles_(row_end - row_begin),
        width_(OutputsPerPanel(call.epilogue)),
        accumulates_(call.epilogue == Epilogue::kAccumulate),
        end_(PanelAt(call.num_panels)),
        prefetches_(call.num_panels * call.num_blocks >= kPrefetchMinBlocks) {}

  void Run() {
    ConfigureTiles<Unit>(tiles_.tile_rows);
    Sum();
    Unit::Release();
  }

  /// The same with tiles that are configured for these rows.
  void Sum() {
    for (int64_t panel = 0; panel < call_.num_panels; ++panel) {
      if (accumulates_) CopyFormerSums(panel);
      int64_t tile = 0;
      for (; tile + 1 < tiles_.num_tiles; tile += 2) SumPair(tile, panel);
      if (tile < tiles_.num_tiles) SumSingle(tile, panel);
    }
  }
  int64_t tile_rows() const { return tiles_.tile_rows; }

 private:
  static int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

  const uint16_t* PanelAt(int64_t panel) const {
    return call_.panels + panel * call_.num_blocks * kPanelBlockSize;
  }
  const uint16_t* RowsAt(int64_t tile) const {
    return static_cast<const uint16_t*>(call_.prepared_rows) + RowOf(tile) * kBlockDepth;
  }
  // The call's row where a tile begins.
  int64_t RowOf(int64_t tile) const { return row_begin_ + tiles_.Begin(tile); }
  int64_t row_step() const { return call_.num_rows * kBlockDepth; }

  // Two tiles of rows with one panel.
  void SumPair(int64_t tile, int64_t panel) {
    Start<0>(tiles_.Begin(tile));
    Start<2>(tiles_.Begin(tile + 1));
    const uint16_t* top = RowsAt(tile);
    const uint16_t* bottom = RowsAt(tile + 1);
    const uint16_t* weights = PanelAt(panel);
    const int64_t step = row_step();
    const Ahead ahead = AheadOf(tile / 2);
    for (int64_t block = 0; block < call_.num_blocks; ++block) {
      ahead.Fetch(weights);
      Unit::template Load<4>(top, kTileRowBytes);
      LoadTileWeights<Unit>(weights);
      Unit::template AddBlock<0, 4, 6>();
      Unit::template AddBlock<1, 4, 7>();
      Unit::template Load<5>(bottom, kTileRowBytes);
      Unit::template AddBlock<2, 5, 6>();
      Unit::template AddBlock<3, 5, 7>();
      beside_();
      top += step;
      bottom += step;
      weights += kPanelBlockSize;
    }
    Finish<0>(tile, panel);
    Finish<2>(tile + 1, panel);
  }

  // The last tile of rows, where it has no partner.
  void SumSingle(int64_t tile, int64_t panel) {
    Start<0>(tiles_.Begin(tile));
    const uint16_t* rows = RowsAt(tile);
    const uint16_t* weights = PanelAt(panel);
    const int64_t step = row_step();
    const Ahead ahead = AheadOf(tile / 2);
    for (int64_t block = 0; block < call_.num_blocks; ++block) {
      ahead.Fetch(weights);
      Unit::template Load<4>(rows, kTileRowBytes);
      LoadTileWeights<Unit>(weights);
      Unit::template AddBlock<0, 4, 6>();
      Unit::template AddBlock<1, 4, 7>();
      beside_();
      rows += step;
      weights += kPanelBlockSize;
    }
    Finish<0>(tile, panel);
  }

  // Sums of the rows from `begin` on in the tiles sums and sums + 1: +0, or what accumulates.
  template <int sums>
  MOEBIUS_ALWAYS_INLINE void Start(int64_t begin) {
    if (accumulates_) {
      const float* const former = former_ + begin * kPanelColumns;
      Unit::template Load<sums>(former, kPanelColumns * sizeof(float));
      Unit::template Load<sums + 1>(former + kTileColumns, kPanelColumns * sizeof(float));
    } else {
      Unit::template Zero<sums>();
      Unit::template Zero<sums + 1>();
    }
  }

  template <int sums>
  MOEBIUS_ALWAYS_INLINE void Finish(int64_t tile, int64_t panel) {
    const int64_t begin = RowOf(tile);
    const int64_t column = panel * width_;
    const int64_t count = Min(width_, call_.num_columns - column);
    if (call_.epilogue == Epilogue::kFloat && call_.bias == nullptr && count == kPanelColumns) {
      float* const out = static_cast<float*>(call_.out) + begin * call_.out_stride + column;
      const int64_t stride_bytes = call_.out_stride * int64_t{sizeof(float)};
      Unit::template Store<sums>(out, stride_bytes);
      Unit::template Store<sums + 1>(out + kTileColumns, stride_bytes);
      return;
    }
    Unit::template Store<sums>(sums_, kPanelColumns * sizeof(float));
    Unit::template Store<sums + 1>(sums_ + kTileColumns, kPanelColumns * sizeof(float));
    for (int64_t r = tiles_.NumShared(tile); r < tiles_.tile_rows; ++r) {
      FinishRow<V>(call_, begin + r, column, count, sums_ + r * kPanelColumns);
    }
  }

  // What a panel accumulates onto, before any of its sums is written: tiles share rows.
  void CopyFormerSums(int64_t panel) {
    const int64_t column = panel * width_;
    const int64_t count = Min(width_, call_.num_columns - column);
    for (int64_t r = 0; r < tiles_.num_rows; ++r) {
      float* const row = former_ + r * kPanelColumns;
      __builtin_memset(row, 0, kPanelColumns * sizeof(float));
      CopyColumns(
          row, static_cast<const float*>(call_.out) + (row_begin_ + r) * call_.out_stride + column,
          count);
    }
  }

  // Weights to ask for beside each block of a pass.
  struct Ahead {
    int64_t distance = 0;  // values from the block in hand
    int64_t first_line = 0;
    int64_t end_line = 0;
    const uint16_t* end = nullptr;  // of the call's weights

    MOEBIUS_ALWAYS_INLINE void Fetch(const uint16_t* block) const {
      const uint16_t* const target = block + distance;
      if (target >= end) return;
      const char* const line = reinterpret_cast<const char*>(target);
#pragma GCC unroll 8
      for (int64_t i = first_line; i < end_line; ++i) __builtin_prefetch(line + i * kLineBytes);
    }
  };

  // Up to two tiles of rows read a panel once, and ask for the blocks that follow. More rows read
  // it again from the second-level cache, and ask meanwhile for the next one, each pass for a part.
  Ahead AheadOf(int64_t pass) const {
    const int64_t num_passes = (tiles_.num_tiles + 1) / 2;
    if (call_.next_panels != nullptr && num_passes == 1) {
      return {call_.next_panels - call_.panels, 0, kBlockLines,
              call_.next_panels + (end_ - call_.panels)};
    }
    if (!prefetches_) return {};
    if (num_passes == 1) return {kTileBlocksAhead * kPanelBlockSize, 0, kBlockLines, end_};
    const int64_t lines = (kBlockLines + num_passes - 1) / num_passes;
    const int64_t first = Min(pass * lines, kBlockLines);
    return {call_.num_blocks * kPanelBlockSize, first, Min(first + lines, kBlockLines), end_};
  }

  const BlockSumCall call_;
  Beside beside_;
  const int64_t row_begin_;
  const RowTiles tiles_;
  const int64_t width_;
  const bool accumulates_;
  const uint16_t* const end_;
  const bool prefetches_;
  alignas(64) float sums_[kTileRows * kPanelColumns];
  alignas(64) float former_[kMaxKernelRows * kPanelColumns];
};

template <class V, class Unit>
void RunTileBlockSum(const BlockSumCall& call) {
  if (call.num_rows == 0) return;
  TileBlockSum<V, Unit>(call, 0, call.num_rows).Run();
}

}  // namespace
}  // namespace moebius
