// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/block_sum_tiles.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/kernel_calls.h"

/// Sums with FP8 weights: codes are decoded to bf16, a few blocks at a time, into memory that stays
/// in the first-level cache, and added by the tier's own block sum; at the end of a group its sums
/// are scaled into the sums of the panel. One path for every number of rows.
namespace moebius {
namespace {

/// Blocks that are decoded at once: 4 KiB of bf16, half a group of the usual 128 K. Decoding asks
/// for codes that come later, adding does not: short turns of both keep memory busy.
inline constexpr int64_t kDecodedBlocks = 2;
/// Codes that are asked for ahead of their turn, by calls of more than a cache surely keeps.
inline constexpr int64_t kFp8AheadBytes = 16 * kPanelBlockSize;

/// c = fma(scale, sums, c) for `num_rows` rows of a panel's columns.
template <class V>
MOEBIUS_ALWAYS_INLINE void AddScaled(const float* scales, const float* sums, int64_t num_rows,
                                     float* c) {
  for (int i = 0; i < kPanelColumns; i += V::kLanes) {
    const typename V::Float scale = V::Load(scales + i);
    for (int64_t r = i; r < num_rows * kPanelColumns; r += kPanelColumns) {
      V::Store(c + r, V::FusedMultiplyAdd(scale, V::Load(sums + r), V::Load(c + r)));
    }
  }
}

/// Adder: a tier's way to sum decoded blocks. `First(rows, num_blocks, weights, sums)` writes the
/// block sums from +0 of all rows, `Next(…, former, sums)` those from `former` on; `rows` are the
/// prepared rows of the first block. Both [num_rows, kPanelColumns] fp32, 64-byte aligned.
template <class V, class Adder>
void RunFp8BlockSum(const Fp8BlockSumCall& call, Adder& adder) {
  alignas(64) uint16_t decoded[kDecodedBlocks * kPanelBlockSize];
  alignas(64) float sums[kMaxKernelRows * kPanelColumns];
  alignas(64) float group_sums[2][kMaxKernelRows * kPanelColumns];
  const BlockSumCall& product = call.product;
  const int64_t width = OutputsPerPanel(product.epilogue);
  DecodeFp8Call decode;
  decode.codes = call.codes;
  decode.values = decoded;
  if (product.num_panels * product.num_blocks >= kPrefetchMinBlocks) {
    decode.ahead_bytes = kFp8AheadBytes;
  }
  const float* scales = call.scales;
  for (int64_t p = 0; p < product.num_panels; ++p) {
    const int64_t column = p * width;
    const int64_t left = product.num_columns - column;
    const int64_t count = left < width ? left : width;
    StartSums(product, column, count, sums);
    int64_t block = 0;
    for (int64_t group = 0; group < call.num_groups; ++group) {
      const int64_t wanted = group == 0 ? call.first_group_blocks : call.group_blocks;
      const int64_t end = block + wanted < product.num_blocks ? block + wanted : product.num_blocks;
      int current = 0;
      for (bool is_first = true; block < end; is_first = false) {
        const int64_t step = end - block < kDecodedBlocks ? end - block : kDecodedBlocks;
        decode.num_blocks = step;
        call.decode(decode);
        if (is_first) {
          adder.First(block, step, decoded, group_sums[0]);
        } else {
          adder.Next(block, step, decoded, group_sums[current], group_sums[1 - current]);
          current = 1 - current;
        }
        decode.codes += step * kPanelBlockSize;
        block += step;
      }
      AddScaled<V>(scales, group_sums[current], product.num_rows, sums);
      scales += kPanelColumns;
    }
    for (int64_t r = 0; r < product.num_rows; ++r) {
      FinishRow<V>(product, r, column, count, sums + r * kPanelColumns);
    }
  }
}

/// The adder of tiers that sum in registers.
template <class Tiles, class RowWord, int row_words>
class TilesAdder {
 public:
  explicit TilesAdder(const BlockSumCall& product)
      : rows_(static_cast<const RowWord*>(product.prepared_rows)), num_rows_(product.num_rows) {}

  void First(int64_t block, int64_t num_blocks, const uint16_t* weights, float* sums) const {
    __builtin_memset(sums, 0, static_cast<uint64_t>(num_rows_) * kPanelColumns * sizeof(float));
    Add(block, num_blocks, weights, sums);
  }
  void Next(int64_t block, int64_t num_blocks, const uint16_t* weights, const float* former,
            float* sums) const {
    __builtin_memcpy(sums, former,
                     static_cast<uint64_t>(num_rows_) * kPanelColumns * sizeof(float));
    Add(block, num_blocks, weights, sums);
  }

 private:
  void Add(int64_t block, int64_t num_blocks, const uint16_t* weights, float* sums) const {
    AddPanel<Tiles, RowWord, row_words>(rows_ + block * num_rows_ * row_words, num_rows_,
                                        num_blocks, weights, nullptr, sums);
  }

  const RowWord* rows_;
  int64_t num_rows_;
};

template <class V, class Tiles, class RowWord, int row_words>
void RunFp8BlockSumByTiles(const Fp8BlockSumCall& call) {
  TilesAdder<Tiles, RowWord, row_words> adder(call.product);
  RunFp8BlockSum<V>(call, adder);
}

}  // namespace
}  // namespace moebius
