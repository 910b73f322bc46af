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

}  // namespace

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
  const PackedMatrix& matrix = *product.matrix;
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  MOEBIUS_CHECK_LE(num_rows, kMaxKernelRows);
  MOEBIUS_CHECK(matrix.pair_order() == kernels.pair_order);
  MOEBIUS_CHECK(matrix.is_gate_up() == (product.epilogue == Epilogue::kSwiGlu));
  if (num_rows == 0 || product.panel_begin >= product.panel_end) return;

  const size_t prepared_bytes =
      static_cast<size_t>(num_rows * matrix.num_blocks()) * kernels.prepared_block_bytes;
  PrepareRowsCall prepare;
  prepare.rows = reinterpret_cast<const uint16_t* const*>(rows.data());
  prepare.num_rows = num_rows;
  prepare.depth = matrix.depth();
  prepare.prepared = PreparedRowScratch(prepared_bytes);
  kernels.prepare_rows(prepare);

  const int64_t column_begin = product.panel_begin * matrix.outputs_per_panel();
  const int64_t column_end =
      std::min(matrix.num_outputs(), product.panel_end * matrix.outputs_per_panel());
  BlockSumCall call;
  call.prepared_rows = prepare.prepared;
  call.num_rows = num_rows;
  call.num_blocks = matrix.num_blocks();
  call.panels = matrix.panel(product.panel_begin);
  call.num_panels = product.panel_end - product.panel_begin;
  call.num_columns = column_end - column_begin;
  call.epilogue = product.epilogue;
  call.bias = product.bias == nullptr ? nullptr : product.bias + column_begin;
  call.out = static_cast<std::byte*>(product.out) +
             static_cast<size_t>(column_begin) * OutputBytes(product.epilogue);
  call.out_stride = product.out_stride;
  kernels.block_sum(call);
}

}  // namespace moebius
