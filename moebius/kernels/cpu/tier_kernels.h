// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/block_sum_tiles.h"
#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/cpu/vector_math.h"
#include "moebius/kernels/kernel_calls.h"

/// A tier's kernels around its tiles: preparation of rows, the loop over panels, epilogues. V: the
/// tier's vector.
namespace moebius {
namespace {

/// Calls `fill(row, block, source, count)` for every row and block, count = 32 but at the row's
/// end.
template <class Fill>
MOEBIUS_ALWAYS_INLINE void ForEachRowBlock(const PrepareRowsCall& call, Fill fill) {
  const int64_t num_blocks = (call.depth + kBlockDepth - 1) / kBlockDepth;
  for (int64_t r = 0; r < call.num_rows; ++r) {
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t begin = block * kBlockDepth;
      const int64_t left = call.depth - begin;
      fill(block * call.num_rows + r, call.rows[r] + begin,
           left < kBlockDepth ? left : kBlockDepth);
    }
  }
}

/// Rows as fp32, 32 per block.
template <class V>
void WidenRowBlocks(const PrepareRowsCall& call) {
  float* prepared = static_cast<float*>(call.prepared);
  ForEachRowBlock(call, [&](int64_t slot, const uint16_t* source, int64_t count) {
    float* target = prepared + slot * kBlockDepth;
    uint16_t padded[kBlockDepth] = {};
    if (count < kBlockDepth) {
      __builtin_memcpy(padded, source, static_cast<uint64_t>(count) * sizeof(uint16_t));
      source = padded;
    }
    for (int i = 0; i < kBlockDepth; i += V::kLanes) {
      V::Store(target + i, V::LoadBf16(source + i));
    }
  });
}

/// Rows as pairs within a chain: of elements 4j … 4j+3 the words (4j+2, 4j) and (4j+3, 4j+1).
template <class V>
void PairRowBlocks(const PrepareRowsCall& call) {
  uint16_t* prepared = static_cast<uint16_t*>(call.prepared);
  ForEachRowBlock(call, [&](int64_t slot, const uint16_t* source, int64_t count) {
    uint64_t groups[kBlockDepth / 4] = {};
    __builtin_memcpy(groups, source, static_cast<uint64_t>(count) * sizeof(uint16_t));
    for (uint64_t& group : groups) {
      const uint64_t even = ((group & 0xFFFF) << 16) | ((group >> 32) & 0xFFFF);
      const uint64_t odd = (group & 0xFFFF0000) | (group >> 48);
      group = even | (odd << 32);
    }
    __builtin_memcpy(prepared + slot * kBlockDepth, groups, sizeof(groups));
  });
}

MOEBIUS_ALWAYS_INLINE int64_t OutputsPerPanel(Epilogue epilogue) {
  return epilogue == Epilogue::kSwiGlu ? kPanelColumns / 2 : kPanelColumns;
}

/// Copies `count` values, a whole panel's worth by vectors.
template <class T>
MOEBIUS_ALWAYS_INLINE void CopyColumns(T* target, const T* source, int64_t count) {
  if (count == kPanelColumns) {
    __builtin_memcpy(target, source, kPanelColumns * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = source[i];
  }
}

template <class V>
MOEBIUS_ALWAYS_INLINE void AddBias(const float* bias, int64_t count, float* sums) {
  float padded[kPanelColumns] = {};
  CopyColumns(padded, bias, count);
  for (int i = 0; i < kPanelColumns; i += V::kLanes) {
    V::Store(sums + i, V::Load(sums + i) + V::Load(padded + i));
  }
}

/// out = fma(out, scale, sums) of one row's `count` outputs.
template <class V>
MOEBIUS_ALWAYS_INLINE void RescaleColumns(float scale, const float* sums, int64_t count,
                                          float* out) {
  float padded[kPanelColumns];
  float* former = out;
  if (count < kPanelColumns) {
    __builtin_memset(padded, 0, sizeof(padded));
    CopyColumns(padded, out, count);
    former = padded;
  }
  const typename V::Float factor = V::Broadcast(scale);
  for (int i = 0; i < kPanelColumns; i += V::kLanes) {
    V::Store(former + i, V::FusedMultiplyAdd(V::Load(former + i), factor, V::Load(sums + i)));
  }
  if (count < kPanelColumns) CopyColumns(out, former, count);
}

/// One row's 32 finished sums to `count` outputs from column `column` on.
template <class V>
MOEBIUS_ALWAYS_INLINE void FinishRow(const BlockSumCall& call, int64_t row, int64_t column,
                                     int64_t count, float* sums) {
  const int64_t offset = row * call.out_stride + column;
  if (call.bias != nullptr) AddBias<V>(call.bias + column, count, sums);
  if (call.epilogue == Epilogue::kFloat || call.epilogue == Epilogue::kAccumulate) {
    CopyColumns(static_cast<float*>(call.out) + offset, sums, count);
    return;
  }
  if (call.epilogue == Epilogue::kRescale) {
    if (!call.row_takes[row]) return;
    RescaleColumns<V>(call.row_scales[row], sums, count, static_cast<float*>(call.out) + offset);
    return;
  }
  uint16_t rounded[kPanelColumns];
  if (call.epilogue == Epilogue::kBf16) {
    for (int i = 0; i < kPanelColumns; i += V::kLanes) V::StoreBf16(rounded + i, V::Load(sums + i));
  } else {
    for (int i = 0; i < kPanelColumns / 2; i += V::kLanes) {
      const typename V::Float gate = V::Load(sums + i);
      const typename V::Float up = V::Load(sums + kPanelColumns / 2 + i);
      V::StoreBf16(rounded + i, (gate * VectorSigmoid<V>(gate)) * up);
    }
  }
  CopyColumns(static_cast<uint16_t*>(call.out) + offset, rounded, count);
}

/// The sums of a panel's `count` outputs from `column` on, before any is added: +0, or what
/// accumulates.
MOEBIUS_ALWAYS_INLINE void StartSums(const BlockSumCall& call, int64_t column, int64_t count,
                                     float* sums) {
  __builtin_memset(sums, 0, static_cast<uint64_t>(call.num_rows) * kPanelColumns * sizeof(float));
  if (call.epilogue != Epilogue::kAccumulate) return;
  for (int64_t r = 0; r < call.num_rows; ++r) {
    CopyColumns(sums + r * kPanelColumns,
                static_cast<const float*>(call.out) + r * call.out_stride + column, count);
  }
}

template <class V, class Tiles, class RowWord, int row_words>
void RunBlockSum(const BlockSumCall& call) {
  alignas(64) float sums[kMaxKernelRows * kPanelColumns];
  const uint16_t* ahead = call.next_panels;
  if (ahead == nullptr) {
    ahead = BlocksAhead(call.panels, call.num_rows, call.num_panels * call.num_blocks);
  }
  const int64_t width = OutputsPerPanel(call.epilogue);
  const int64_t panel_size = call.num_blocks * kPanelBlockSize;
  for (int64_t p = 0; p < call.num_panels; ++p) {
    const int64_t column = p * width;
    const int64_t left = call.num_columns - column;
    const int64_t count = left < width ? left : width;
    StartSums(call, column, count, sums);
    AddPanel<Tiles, RowWord, row_words>(
        static_cast<const RowWord*>(call.prepared_rows), call.num_rows, call.num_blocks,
        call.panels + p * panel_size, ahead != nullptr ? ahead + p * panel_size : nullptr, sums);
    for (int64_t r = 0; r < call.num_rows; ++r) {
      FinishRow<V>(call, r, column, count, sums + r * kPanelColumns);
    }
  }
}

template <class Tiles>
void RunFloatBlockSum(const FloatBlockSumCall& call) {
  alignas(64) float sums[kMaxKernelRows * kPanelColumns];
  const float* const ahead =
      BlocksAhead(call.panels, call.num_rows, call.num_panels * call.num_blocks);
  const int64_t panel_size = call.num_blocks * kPanelBlockSize;
  for (int64_t p = 0; p < call.num_panels; ++p) {
    const int64_t column = p * kPanelColumns;
    const int64_t left = call.num_columns - column;
    const int64_t count = left < kPanelColumns ? left : kPanelColumns;
    __builtin_memset(sums, 0, static_cast<uint64_t>(call.num_rows) * kPanelColumns * sizeof(float));
    AddPanel<Tiles, float, kBlockDepth>(call.widened_rows, call.num_rows, call.num_blocks,
                                        call.panels + p * panel_size,
                                        ahead != nullptr ? ahead + p * panel_size : nullptr, sums);
    for (int64_t r = 0; r < call.num_rows; ++r) {
      CopyColumns(call.out + r * call.out_stride + column, sums + r * kPanelColumns, count);
    }
  }
}

template <class V>
void AccumulateScaledRow(float scale, const uint16_t* values, float* sum, int64_t size) {
  const typename V::Float factor = V::Broadcast(scale);
  int64_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) {
    V::Store(sum + i, V::FusedMultiplyAdd(factor, V::LoadBf16(values + i), V::Load(sum + i)));
  }
  if (i == size) return;
  uint16_t padded_values[V::kLanes] = {};
  float padded_sum[V::kLanes] = {};
  for (int64_t j = 0; i + j < size; ++j) {
    padded_values[j] = values[i + j];
    padded_sum[j] = sum[i + j];
  }
  V::Store(padded_sum,
           V::FusedMultiplyAdd(factor, V::LoadBf16(padded_values), V::Load(padded_sum)));
  for (int64_t j = 0; i + j < size; ++j) sum[i + j] = padded_sum[j];
}

/// Counts a call of a block sum, inside the tier's file.
MOEBIUS_ALWAYS_INLINE void CountExecution(uint64_t* executed) {
  __atomic_fetch_add(executed, 1, __ATOMIC_RELAXED);
}

}  // namespace
}  // namespace moebius
