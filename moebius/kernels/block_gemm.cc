// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/block_gemm.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "moebius/base/check.h"
#include "moebius/kernels/row_panels.h"

namespace moebius {
namespace {

// Tasks per thread of a parallel form: enough to even out unequal cores, few enough that preparing
// the rows in each stays small beside the product.
constexpr int64_t kTasksPerThread = 4;

// Rows [begin, end) of `rows` in one kernel call.
void RunRowRange(const Kernels& kernels, Bf16Rows rows, int64_t begin, int64_t end,
                 PanelProduct product, size_t output_bytes) {
  const Bf16* pointers[kMaxKernelRows];
  for (int64_t r = begin; r < end; ++r) pointers[r - begin] = rows.row(r);
  product.out = static_cast<std::byte*>(product.out) +
                static_cast<size_t>(begin * product.out_stride) * output_bytes;
  RunPanels(kernels, absl::MakeConstSpan(pointers, static_cast<size_t>(end - begin)), product);
}

template <class T>
PanelProduct MakeProduct(const PackedMatrix& matrix, Bf16Rows rows, Epilogue epilogue,
                         absl::Span<const float> bias, Rows<T> out) {
  MOEBIUS_CHECK_EQ(rows.width, matrix.depth());
  MOEBIUS_CHECK_EQ(out.num_rows, rows.num_rows);
  MOEBIUS_CHECK_EQ(out.width, matrix.num_outputs());
  if (!bias.empty()) {
    MOEBIUS_CHECK_EQ(static_cast<int64_t>(bias.size()), matrix.num_outputs());
  }
  PanelProduct product;
  product.matrix = &matrix;
  product.panel_end = matrix.num_panels();
  product.epilogue = epilogue;
  product.bias = bias.empty() ? nullptr : bias.data();
  product.out = out.data;
  product.out_stride = out.stride;
  return product;
}

void RunSerially(const Kernels& kernels, Bf16Rows rows, const PanelProduct& product,
                 size_t output_bytes) {
  if (rows.num_rows == 0) return;
  const int64_t step = RowsPerCall(kernels, rows.num_rows);
  for (int64_t begin = 0; begin < rows.num_rows; begin += step) {
    RunRowRange(kernels, rows, begin, std::min(begin + step, rows.num_rows), product, output_bytes);
  }
}

void RunInParallel(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                   const PanelProduct& product, size_t output_bytes) {
  const PackedMatrix& matrix = *product.matrix;
  const int64_t work = rows.num_rows * matrix.depth() * matrix.num_outputs();
  if (work < kParallelThreshold || executor.num_threads() == 1) {
    return RunSerially(kernels, rows, product, output_bytes);
  }
  const int64_t step = RowsPerCall(kernels, rows.num_rows);
  const int64_t num_row_ranges = (rows.num_rows + step - 1) / step;
  const int64_t wanted_tasks = kTasksPerThread * executor.num_threads();
  const int64_t num_panel_ranges =
      std::clamp<int64_t>(wanted_tasks / num_row_ranges, 1, matrix.num_panels());
  executor.ParallelFor(num_row_ranges * num_panel_ranges, [&](int64_t task, int) {
    const int64_t row_begin = task / num_panel_ranges * step;
    const TaskRange panels =
        SplitEvenly(matrix.num_panels(), task % num_panel_ranges, num_panel_ranges);
    PanelProduct part = product;
    part.panel_begin = panels.begin;
    part.panel_end = panels.end;
    RunRowRange(kernels, rows, row_begin, std::min(row_begin + step, rows.num_rows), part,
                output_bytes);
  });
}

}  // namespace

void MatMul(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& matrix, int64_t panel_begin,
            int64_t panel_end, MutableFloatRows out) {
  MOEBIUS_CHECK(0 <= panel_begin && panel_begin <= panel_end && panel_end <= matrix.num_panels());
  PanelProduct product = MakeProduct(matrix, rows, Epilogue::kFloat, {}, out);
  product.panel_begin = panel_begin;
  product.panel_end = panel_end;
  RunSerially(kernels, rows, product, sizeof(float));
}

void MatMul(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& matrix,
            MutableFloatRows out) {
  MatMul(kernels, rows, matrix, 0, matrix.num_panels(), out);
}

void MatMulBf16(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& matrix,
                absl::Span<const float> bias, MutableBf16Rows out) {
  RunSerially(kernels, rows, MakeProduct(matrix, rows, Epilogue::kBf16, bias, out), sizeof(Bf16));
}

void MatMulSwiGlu(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& gate_up,
                  MutableBf16Rows out) {
  RunSerially(kernels, rows, MakeProduct(gate_up, rows, Epilogue::kSwiGlu, {}, out), sizeof(Bf16));
}

void ParallelMatMul(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                    const PackedMatrix& matrix, MutableFloatRows out) {
  RunInParallel(executor, kernels, rows, MakeProduct(matrix, rows, Epilogue::kFloat, {}, out),
                sizeof(float));
}

void ParallelMatMulBf16(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                        const PackedMatrix& matrix, absl::Span<const float> bias,
                        MutableBf16Rows out) {
  RunInParallel(executor, kernels, rows, MakeProduct(matrix, rows, Epilogue::kBf16, bias, out),
                sizeof(Bf16));
}

void ParallelLogits(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                    const PackedMatrix& head, MutableFloatRows out) {
  ParallelMatMul(executor, kernels, rows, head, out);
  for (int64_t r = 0; r < out.num_rows; ++r) {
    for (float& logit : out.span(r)) {
      if (logit != logit) logit = std::bit_cast<float>(uint32_t{0x7FC00000});
    }
  }
}

}  // namespace moebius
