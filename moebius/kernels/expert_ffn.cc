// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/expert_ffn.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/row_panels.h"

namespace moebius {
namespace {

// Tasks are at least this many multiply-adds, and about this many per thread exist.
constexpr int64_t kMinTaskWork = int64_t{1} << 18;
constexpr int64_t kTasksPerThread = 8;
// Rows up to which a call waits for weights rather than for arithmetic: the ratio of the two rates
// of a CPU with bf16 products, and more than that of one without.
constexpr int64_t kRowsPerRead = 8;

enum class Phase { kGateUp, kDown };

const PackedMatrix& MatrixOf(const ExpertBatch& batch, Phase phase) {
  return phase == Phase::kGateUp ? batch.weights->gate_up : batch.weights->down;
}

// Multiply-adds of some rows with some panels of a phase.
int64_t MultiplyAdds(const ExpertBatch& batch, Phase phase, int64_t num_rows, int64_t num_panels) {
  return num_rows * num_panels * kPanelColumns * MatrixOf(batch, phase).depth();
}

int64_t NumRows(const ExpertBatch& batch) { return static_cast<int64_t>(batch.row_indices.size()); }

int64_t MultiplyAdds(const ExpertBatch& batch, Phase phase) {
  return MultiplyAdds(batch, phase, NumRows(batch), MatrixOf(batch, phase).num_panels());
}

// As ExpertBatch's WorkOf counts.
template <typename Task>
int64_t WorkOfTask(const ExpertBatch& batch, Phase phase, const Task& task) {
  return MultiplyAdds(batch, phase, std::max<int64_t>(task.row_end - task.row_begin, kRowsPerRead),
                      task.panel_end - task.panel_begin);
}

// Cuts a phase into tasks of about `task_work`, by panels before rows: threads share an expert's
// panels, so that each weight is read once.
template <typename Task>
void AppendTasks(const Kernels& kernels, const ExpertBatch& batch, int32_t batch_index, Phase phase,
                 int64_t task_work, std::vector<Task>& tasks) {
  const int64_t num_rows = NumRows(batch);
  if (num_rows == 0) return;
  const PackedMatrix& matrix = MatrixOf(batch, phase);
  const int64_t step = RowsPerCall(kernels, num_rows);
  const int64_t panel_work = std::min(step, num_rows) * kPanelColumns * matrix.depth();
  const int64_t panels_per_task =
      std::max<int64_t>(1, task_work / std::max<int64_t>(1, panel_work));
  const int64_t num_ranges = (matrix.num_panels() + panels_per_task - 1) / panels_per_task;
  for (int64_t row = 0; row < num_rows; row += step) {
    for (int64_t range = 0; range < num_ranges; ++range) {
      const TaskRange panels = SplitEvenly(matrix.num_panels(), range, num_ranges);
      tasks.push_back(Task{batch_index, static_cast<int32_t>(row),
                           static_cast<int32_t>(std::min(row + step, num_rows)),
                           static_cast<int32_t>(panels.begin), static_cast<int32_t>(panels.end)});
    }
  }
}

template <typename Task>
void RunGateUp(const Kernels& kernels, const ExpertBatch& batch, const Task& task, Bf16Rows rows,
               Bf16* products) {
  const Bf16* pointers[kMaxKernelRows];
  const int64_t count = task.row_end - task.row_begin;
  for (int64_t r = 0; r < count; ++r) {
    pointers[r] = rows.row(batch.row_indices[static_cast<size_t>(task.row_begin + r)]);
  }
  const int64_t width = batch.weights->intermediate_size();
  PanelProduct product;
  product.matrix = &batch.weights->gate_up;
  product.panel_begin = task.panel_begin;
  product.panel_end = task.panel_end;
  product.epilogue = Epilogue::kSwiGlu;
  product.out = products + task.row_begin * width;
  product.out_stride = width;
  RunPanels(kernels, absl::MakeConstSpan(pointers, static_cast<size_t>(count)), product);
}

template <typename Task>
void RunDown(const Kernels& kernels, const ExpertBatch& batch, const Task& task,
             const Bf16* products) {
  const Bf16* pointers[kMaxKernelRows];
  const int64_t count = task.row_end - task.row_begin;
  const int64_t width = batch.weights->intermediate_size();
  for (int64_t r = 0; r < count; ++r) pointers[r] = products + (task.row_begin + r) * width;
  PanelProduct product;
  product.matrix = &batch.weights->down;
  product.panel_begin = task.panel_begin;
  product.panel_end = task.panel_end;
  product.epilogue = Epilogue::kBf16;
  product.out = batch.out.row(task.row_begin);
  product.out_stride = batch.out.stride;
  RunPanels(kernels, absl::MakeConstSpan(pointers, static_cast<size_t>(count)), product);
}

}  // namespace

PackedExpert PackedExpert::Pack(const WeightRows& gate, const WeightRows& up,
                                const WeightRows& down, PairOrder order,
                                absl::Span<uint8_t> storage) {
  MOEBIUS_CHECK_EQ(down.width(), gate.num_rows());
  MOEBIUS_CHECK_EQ(down.num_rows(), gate.width());
  if (storage.empty()) {
    return PackedExpert{PackedMatrix::PackGateUp(gate, up, order), PackedMatrix::Pack(down, order)};
  }
  const size_t gate_up =
      PackedLayout::OfGateUp(gate.num_rows(), gate.width(), gate.blocks(), order).bytes();
  return PackedExpert{PackedMatrix::PackGateUp(gate, up, order, storage.first(gate_up)),
                      PackedMatrix::Pack(down, order, storage.subspan(gate_up))};
}

int64_t PackedExpert::BytesOf(const ExpertShape& shape) {
  return static_cast<int64_t>(shape.GateUpLayout(PairOrder::kAdjacent).bytes() +
                              shape.DownLayout(PairOrder::kAdjacent).bytes());
}

PackedExpert PackedExpert::View(const ExpertShape& shape, PairOrder order,
                                absl::Span<uint8_t> storage) {
  const PackedLayout gate_up = shape.GateUpLayout(order);
  return PackedExpert{
      PackedMatrix::View(gate_up, storage.first(gate_up.bytes())),
      PackedMatrix::View(shape.DownLayout(order), storage.subspan(gate_up.bytes()))};
}

int64_t WorkOf(const ExpertBatch& batch) {
  const int64_t num_rows = NumRows(batch);
  if (num_rows == 0) return 0;
  int64_t work = 0;
  for (const Phase phase : {Phase::kGateUp, Phase::kDown}) {
    work += MultiplyAdds(batch, phase, std::max(num_rows, kRowsPerRead),
                         MatrixOf(batch, phase).num_panels());
  }
  return work;
}

void ForwardExperts(Executor& executor, const Kernels& kernels,
                    absl::Span<const ExpertBatch> batches, Bf16Rows rows, ExpertScratch& scratch,
                    const ForwardPieces* pieces) {
  // Where each batch's SwiGLU products start.
  scratch.product_begin_.clear();
  int64_t num_products = 0;
  int64_t multiply_adds[2] = {0, 0};
  int64_t work = 0;
  for (const ExpertBatch& batch : batches) {
    const int64_t num_rows = NumRows(batch);
    MOEBIUS_CHECK_EQ(batch.weights->hidden_size(), rows.width);
    MOEBIUS_CHECK_EQ(batch.out.num_rows, num_rows);
    MOEBIUS_CHECK_EQ(batch.out.width, batch.weights->hidden_size());
    scratch.product_begin_.push_back(num_products);
    num_products += num_rows * batch.weights->intermediate_size();
    multiply_adds[0] += MultiplyAdds(batch, Phase::kGateUp);
    multiply_adds[1] += MultiplyAdds(batch, Phase::kDown);
    work += WorkOf(batch);
  }
  scratch.products_.Resize(static_cast<size_t>(num_products));

  const int64_t piece_work = pieces == nullptr ? work : std::max<int64_t>(1, pieces->max_work);
  const bool is_cut = work > piece_work;
  const bool is_inline =
      executor.num_threads() == 1 || multiply_adds[0] + multiply_adds[1] < kParallelThreshold;
  std::vector<ExpertScratch::Task>& tasks = scratch.tasks_;
  for (const Phase phase : {Phase::kGateUp, Phase::kDown}) {
    const int64_t phase_work = std::min(multiply_adds[static_cast<int>(phase)], piece_work);
    const int64_t task_work =
        is_inline && !is_cut
            ? phase_work
            : std::max(kMinTaskWork, phase_work / (kTasksPerThread * executor.num_threads()));
    tasks.clear();
    for (size_t b = 0; b < batches.size(); ++b) {
      AppendTasks(kernels, batches[b], static_cast<int32_t>(b), phase, task_work, tasks);
    }
    const auto run = [&](size_t index) {
      const ExpertScratch::Task& task = tasks[index];
      const size_t b = static_cast<size_t>(task.batch_index);
      Bf16* const products = scratch.products_.data() + scratch.product_begin_[b];
      if (phase == Phase::kGateUp) {
        RunGateUp(kernels, batches[b], task, rows, products);
      } else {
        RunDown(kernels, batches[b], task, products);
      }
    };
    for (size_t begin = 0; begin < tasks.size();) {
      size_t end = is_cut ? begin : tasks.size();
      int64_t done = 0;
      while (end < tasks.size()) {
        const ExpertScratch::Task& task = tasks[end];
        const int64_t added =
            WorkOfTask(batches[static_cast<size_t>(task.batch_index)], phase, task);
        if (end > begin && done + added > piece_work) break;
        done += added;
        ++end;
      }
      if (is_inline) {
        for (size_t index = begin; index < end; ++index) run(index);
      } else {
        executor.ParallelFor(static_cast<int64_t>(end - begin),
                             [&](int64_t index, int) { run(begin + static_cast<size_t>(index)); });
      }
      begin = end;
      if (is_cut) pieces->after(done, phase == Phase::kDown && begin == tasks.size());
    }
  }
  if (pieces != nullptr && !is_cut) pieces->after(work, true);
}

}  // namespace moebius
