// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/gate_logits.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/row_panels.h"

namespace moebius {
namespace {

constexpr int64_t kTasksPerThread = 4;

int64_t NumBlocks(int64_t count) { return (count + kBlockDepth - 1) / kBlockDepth; }

// Rows [begin, end) with panels [panels.begin, panels.end) of fp32 weights.
void RunFloatPanels(const Kernels& kernels, Bf16Rows rows, TaskRange range, TaskRange panels,
                    const float* weights, MutableFloatRows logits) {
  const int64_t num_blocks = NumBlocks(rows.width);
  const uint16_t* pointers[kMaxKernelRows];
  for (int64_t r = range.begin; r < range.end; ++r) {
    pointers[r - range.begin] = reinterpret_cast<const uint16_t*>(rows.row(r));
  }
  PrepareRowsCall prepare;
  prepare.rows = pointers;
  prepare.num_rows = range.end - range.begin;
  prepare.depth = rows.width;
  prepare.prepared = PreparedRowScratch(static_cast<size_t>(prepare.num_rows * num_blocks) *
                                        kBlockDepth * sizeof(float));
  kernels.widen_rows(prepare);

  FloatBlockSumCall call;
  call.widened_rows = static_cast<const float*>(prepare.prepared);
  call.num_rows = prepare.num_rows;
  call.num_blocks = num_blocks;
  call.panels = weights + panels.begin * num_blocks * kPanelBlockSize;
  call.num_panels = panels.end - panels.begin;
  call.num_columns =
      std::min(panels.end * kPanelColumns, logits.width) - panels.begin * kPanelColumns;
  call.out = logits.row(range.begin) + panels.begin * kPanelColumns;
  call.out_stride = logits.stride;
  kernels.float_block_sum(call);
}

}  // namespace

GateMatrix GateMatrix::Pack(Bf16Rows weights, PairOrder order) {
  GateMatrix gate;
  gate.num_experts_ = weights.num_rows;
  gate.hidden_size_ = weights.width;
  gate.bf16_ = PackedMatrix::Pack(weights, order);
  return gate;
}

GateMatrix GateMatrix::Pack(FloatRows weights) {
  GateMatrix gate;
  gate.num_experts_ = weights.num_rows;
  gate.hidden_size_ = weights.width;
  const int64_t num_panels = (weights.num_rows + kPanelColumns - 1) / kPanelColumns;
  const int64_t num_blocks = NumBlocks(weights.width);
  gate.float_panels_.Resize(static_cast<size_t>(num_panels * num_blocks * kPanelBlockSize));
  for (int64_t e = 0; e < weights.num_rows; ++e) {
    float* const panel =
        gate.float_panels_.data() + e / kPanelColumns * num_blocks * kPanelBlockSize;
    for (int64_t k = 0; k < weights.width; ++k) {
      panel[k * kPanelColumns + e % kPanelColumns] = weights.row(e)[k];
    }
  }
  return gate;
}

void GateLogits(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                const GateMatrix& weights, MutableFloatRows logits) {
  if (weights.float_panels_.size() == 0) {
    return ParallelMatMul(executor, kernels, rows, weights.bf16_, logits);
  }
  MOEBIUS_CHECK_EQ(rows.width, weights.hidden_size());
  MOEBIUS_CHECK_EQ(logits.num_rows, rows.num_rows);
  MOEBIUS_CHECK_EQ(logits.width, weights.num_experts());
  if (rows.num_rows == 0) return;
  const int64_t num_panels = (weights.num_experts() + kPanelColumns - 1) / kPanelColumns;
  const int64_t step = RowsPerCall(kernels, rows.num_rows);
  const int64_t num_row_ranges = (rows.num_rows + step - 1) / step;
  const bool is_inline = executor.num_threads() == 1 ||
                         rows.num_rows * rows.width * weights.num_experts() < kParallelThreshold;
  const int64_t wanted_tasks = is_inline ? 1 : kTasksPerThread * executor.num_threads();
  const int64_t num_panel_ranges =
      std::clamp<int64_t>(wanted_tasks / num_row_ranges, 1, num_panels);
  const auto run = [&](int64_t task, int) {
    const int64_t row_begin = task / num_panel_ranges * step;
    RunFloatPanels(kernels, rows, TaskRange{row_begin, std::min(row_begin + step, rows.num_rows)},
                   SplitEvenly(num_panels, task % num_panel_ranges, num_panel_ranges),
                   weights.float_panels_.data(), logits);
  };
  const int64_t num_tasks = num_row_ranges * num_panel_ranges;
  if (is_inline) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task, 0);
  } else {
    executor.ParallelFor(num_tasks, run);
  }
}

}  // namespace moebius
