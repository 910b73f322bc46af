// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/tile_block_sum.h"
#include "moebius/kernels/inline.h"

namespace moebius {
namespace {

/// The tile instructions of AMX, one each. Written as such because GCC 12's intrinsics do not say
/// which memory they read (the configuration's first eight bytes, and nothing of a tile), so that
/// stores before them may be moved behind or left out.
struct AmxUnit {
  MOEBIUS_ALWAYS_INLINE static void Configure(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  MOEBIUS_ALWAYS_INLINE static void Release() { asm volatile("tilerelease"); }

  template <int tile>
  MOEBIUS_ALWAYS_INLINE static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
  }
  template <int tile>
  MOEBIUS_ALWAYS_INLINE static void Load(const void* base, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(base), "r"(stride_bytes), "i"(tile)
                 : "memory");
  }
  template <int tile>
  MOEBIUS_ALWAYS_INLINE static void Store(void* base, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(base), "r"(stride_bytes), "i"(tile)
                 : "memory");
  }
  /// sums += rows · weights: one block of the block sum for each element. MXCSR plays no part:
  /// denormals are flushed, going in and coming out, and sums are rounded to nearest even.
  template <int sums, int rows, int weights>
  MOEBIUS_ALWAYS_INLINE static void AddBlock() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(rows), "i"(weights));
  }
};

}  // namespace
}  // namespace moebius
