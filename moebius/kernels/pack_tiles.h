// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// How rows of keys and values become the 32 × 32 blocks that block sums read as panels
/// (packed_matrix.h); not for other rooms. Plain values, like kernel_calls.h.
namespace moebius {

/// Consecutive tiles, each of 32 rows and 32 bf16 values of them.
struct PackTilesCall {
  const uint16_t* rows = nullptr;  // of the first tile
  int64_t row_stride = 0;          // elements from a row to the next
  int64_t tile_step = 0;           // elements from a tile's first row to the next tile's
  int64_t num_tiles = 0;
  bool within_chain = false;  // PairOrder::kWithinChain, else kAdjacent
  uint16_t* tiles = nullptr;  // num_tiles · kPanelBlockSize
};

/// One instruction set's. Thread-safe; they allocate nothing and move bits only, so that all have
/// the same ones.
struct PackTiles {
  void (*keys)(const PackTilesCall&) = nullptr;    // a row is a column of the panel
  void (*values)(const PackTilesCall&) = nullptr;  // a row is an element of the panel's K
};

extern const PackTiles kBaselinePackTiles;  // what every x86-64 has
extern const PackTiles kAvx512PackTiles;    // AVX-512 (f, bw)

}  // namespace moebius
