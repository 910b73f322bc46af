// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/row_panels.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

// Of an epilogue's outputs.
size_t OutputBytes(Epilogue epilogue) {
  const bool is_float = epilogue == Epilogue::kFloat || epilogue == Epilogue::kAccumulate;
  return is_float ? sizeof(float) : sizeof(Bf16);
}

int64_t NumBlocks(int64_t depth) { return (depth + kBlockDepth - 1) / kBlockDepth; }

// Whether groups begin where blocks of 32 K begin, so that no padding lies between them.
bool HasWholeBlocks(const DepthGroups& groups) {
  return groups.num_groups == 1 || (groups.first_depth % kBlockDepth == 0 &&
                                    (groups.num_groups == 2 || groups.depth % kBlockDepth == 0));
}

}  // namespace

// Each group of K padded to whole blocks.
void PreparedRows::Prepare(const Kernels& kernels, absl::Span<const Bf16* const> rows,
                           const PackedMatrix& matrix) {
  num_rows_ = static_cast<int64_t>(rows.size());
  MOEBIUS_CHECK_LE(num_rows_, kMaxKernelRows);
  if (num_rows_ == 0) return;
  const size_t block_bytes = static_cast<size_t>(num_rows_) * kernels.prepared_block_bytes;
  memory_.Resize(static_cast<size_t>(matrix.num_blocks()) * block_bytes);
  PrepareRowsCall prepare;
  prepare.rows = reinterpret_cast<const uint16_t* const*>(rows.data());
  prepare.num_rows = num_rows_;
  prepare.depth = matrix.depth();
  prepare.prepared = memory_.data();
  const DepthGroups& groups = matrix.groups();
  if (HasWholeBlocks(groups)) return kernels.prepare_rows(prepare);
  const uint16_t* of_group[kMaxKernelRows];
  const uint16_t* const* const whole = prepare.rows;
  prepare.rows = of_group;
  int64_t block = 0;
  for (int64_t group = 0; group < groups.num_groups; ++group) {
    for (int64_t r = 0; r < num_rows_; ++r) of_group[r] = whole[r] + groups.Begin(group);
    prepare.depth = groups.DepthOf(group, matrix.depth());
    prepare.prepared = memory_.data() + static_cast<size_t>(block) * block_bytes;
    kernels.prepare_rows(prepare);
    block += NumBlocks(prepare.depth);
  }
}

void* PreparedRowScratch(size_t size_bytes) {
  // Per thread, so that tasks of a parallel form allocate nothing in steady state.
  thread_local Array<std::byte> scratch;
  scratch.Resize(size_bytes);
  return scratch.data();
}

int64_t RowsPerCall(const Kernels& kernels, int64_t num_rows) {
  const int64_t num_calls = (num_rows + kMaxKernelRows - 1) / kMaxKernelRows;
  const int64_t even = (num_rows + num_calls - 1) / num_calls;
  return (even + kernels.tile_rows - 1) / kernels.tile_rows * kernels.tile_rows;
}

void RunPanels(const Kernels& kernels, absl::Span<const Bf16* const> rows,
               const PanelProduct& product) {
  // Per thread, so that tasks of a parallel form allocate nothing in steady state.
  thread_local PreparedRows prepared;
  prepared.Prepare(kernels, rows, *product.matrix);
  RunPanels(kernels, prepared, product);
}

void RunPanels(const Kernels& kernels, const PreparedRows& rows, const PanelProduct& product) {
  const PackedMatrix& matrix = *product.matrix;
  const int64_t num_rows = rows.num_rows();
  MOEBIUS_CHECK(matrix.pair_order() == kernels.pair_order);
  MOEBIUS_CHECK(matrix.is_gate_up() == (product.epilogue == Epilogue::kSwiGlu));
  if (num_rows == 0 || product.panel_begin >= product.panel_end) return;

  const int64_t column_begin = product.panel_begin * matrix.outputs_per_panel();
  const int64_t column_end =
      std::min(matrix.num_outputs(), product.panel_end * matrix.outputs_per_panel());
  BlockSumCall call;
  call.prepared_rows = rows.data();
  call.num_rows = num_rows;
  call.num_blocks = matrix.num_blocks();
  call.num_panels = product.panel_end - product.panel_begin;
  call.num_columns = column_end - column_begin;
  call.epilogue = product.epilogue;
  call.bias = product.bias == nullptr ? nullptr : product.bias + column_begin;
  call.out = static_cast<std::byte*>(product.out) +
             static_cast<size_t>(column_begin) * OutputBytes(product.epilogue);
  call.out_stride = product.out_stride;
  if (!matrix.is_fp8()) {
    call.panels = matrix.panel(product.panel_begin);
    kernels.block_sum(call);
    return;
  }
  const DepthGroups& groups = matrix.groups();
  Fp8BlockSumCall fp8;
  fp8.product = call;
  fp8.codes = matrix.panel_codes(product.panel_begin);
  fp8.scales = matrix.panel_scales(product.panel_begin);
  fp8.num_groups = groups.num_groups;
  fp8.first_group_blocks = NumBlocks(groups.first_depth);
  fp8.group_blocks = NumBlocks(groups.depth);
  fp8.decode = kernels.decode_fp8;
  kernels.fp8_block_sum(fp8);
}

}  // namespace moebius
