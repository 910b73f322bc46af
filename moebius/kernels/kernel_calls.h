// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Arguments of a tier's kernels: plain values, because a tier's source file may emit no code that
/// others could link against. bf16 values are their bits (uint16_t).
namespace moebius {

/// Columns of a panel, K of a block, and the most rows of one kernel call.
inline constexpr int kPanelColumns = 32;
inline constexpr int kBlockDepth = 32;
inline constexpr int kMaxKernelRows = 96;
/// bf16 values of one panel's block: 16 rows of 32 pairs, 2 KiB.
inline constexpr int kPanelBlockSize = kPanelColumns * kBlockDepth;

/// What becomes of a finished sum.
enum class Epilogue : int32_t {
  kFloat,       // out fp32 = sum from +0
  kAccumulate,  // out fp32 = sum from out's former value
  kBf16,        // out bf16 = round(sum from +0 [+ bias])
  kRescale,     // out fp32 = fma(out's former value, the row's scale, sum from +0)
  kSwiGlu,  // columns c and c + 16 of a panel are gate g and up u: out bf16 = (g · sigmoid(g)) · u
};

/// Block sums of prepared rows with consecutive panels.
struct BlockSumCall {
  const void* prepared_rows = nullptr;  // made by the same tier's prepare_rows
  int64_t num_rows = 0;                 // <= kMaxKernelRows
  int64_t num_blocks = 0;               // ceil(K / 32)
  const uint16_t* panels = nullptr;     // 64-byte aligned, num_blocks · kPanelBlockSize each
  int64_t num_panels = 0;
  const uint16_t* next_panels = nullptr;  // of the call to come, as many: asked for meanwhile
  /// Outputs to write: columns past it in the last panel are padding. For kSwiGlu a panel has 16.
  int64_t num_columns = 0;
  Epilogue epilogue = Epilogue::kFloat;
  const float* bias = nullptr;  // [num_columns] or null; kBf16 and kFloat: added to the sum in fp32
  const float* row_scales = nullptr;  // kRescale: [num_rows]
  const bool* row_takes = nullptr;    // kRescale: [num_rows]; false leaves the row as it is
  void* out = nullptr;                // fp32 or bf16 [num_rows, num_columns]
  int64_t out_stride = 0;             // elements from row to row
};

/// Codes of FP8 weights to bf16 values, exactly: `num_blocks` blocks of kPanelBlockSize. In each
/// run of 64 codes, lane l of 16: its low 8 are values 8l … of the run, its high 8 values 32 + 8l …
/// . Also asks for `num_blocks` blocks of codes that lie `ahead_bytes` further, where that is not
/// 0. `codes` and `values` are 64-byte aligned. Codes 0x7F and 0xFF have no meaning.
struct DecodeFp8Call {
  const uint8_t* codes = nullptr;
  int64_t num_blocks = 0;
  int64_t ahead_bytes = 0;
  uint16_t* values = nullptr;
};
using DecodeFp8 = void (*)(const DecodeFp8Call&);

/// Sums of prepared rows with consecutive panels of FP8 weights. K is cut into groups of whole
/// blocks that have one scale for each column: the first group has first_group_blocks, all others
/// group_blocks, but the last one, which has what is left. Per group a block sum from +0, then
/// C = fma(scale, group's sum, C).
struct Fp8BlockSumCall {
  BlockSumCall product;            // but for its panels
  const uint8_t* codes = nullptr;  // 64-byte aligned, num_blocks · kPanelBlockSize for each panel
  const float* scales = nullptr;   // [num_panels, num_groups, kPanelColumns]
  int64_t num_groups = 0;
  int64_t first_group_blocks = 0;
  int64_t group_blocks = 0;
  DecodeFp8 decode = nullptr;  // of this host
};

/// Block sums of rows widened to fp32 with consecutive panels of fp32 weights (the gate's).
struct FloatBlockSumCall {
  const float* widened_rows = nullptr;  // made by widen_rows
  int64_t num_rows = 0;                 // <= kMaxKernelRows
  int64_t num_blocks = 0;
  const float* panels = nullptr;  // per block 32 rows (K) of 32 columns
  int64_t num_panels = 0;
  int64_t num_columns = 0;
  float* out = nullptr;  // fp32 [num_rows, num_columns] = sum from +0
  int64_t out_stride = 0;
};

/// Rows in the form that a kernel reads: blocks of 32 K, in each the rows, padded with +0 to 32.
struct PrepareRowsCall {
  const uint16_t* const* rows = nullptr;  // num_rows pointers to `depth` bf16 values
  int64_t num_rows = 0;
  int64_t depth = 0;         // K
  void* prepared = nullptr;  // ceil(K / 32) · num_rows · prepared_block_bytes
};

/// The functions of one tier's source file. Thread-safe; they allocate nothing.
struct TierKernels {
  void (*prepare_rows)(const PrepareRowsCall&) = nullptr;
  void (*block_sum)(const BlockSumCall&) = nullptr;
  void (*fp8_block_sum)(const Fp8BlockSumCall&) = nullptr;
  /// Like prepare_rows, always to fp32 (128 bytes per row and block): for float_block_sum.
  void (*widen_rows)(const PrepareRowsCall&) = nullptr;
  void (*float_block_sum)(const FloatBlockSumCall&) = nullptr;
  /// sum[i] = fma(scale, values[i], sum[i]), values bf16.
  void (*accumulate_scaled)(float scale, const uint16_t* values, float* sum,
                            int64_t size) = nullptr;
  /// Calls of block_sum, fp8_block_sum and float_block_sum so far in this process, counted inside
  /// the kernel.
  const uint64_t* executed = nullptr;
};

}  // namespace moebius
