// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/expert_ffn.h"

#include <algorithm>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/row_panels.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

// Tasks are at least this many multiply-adds, and about this many per thread exist.
constexpr int64_t kMinTaskWork = int64_t{1} << 18;
constexpr int64_t kTasksPerThread = 8;
// Rows up to which a call waits for weights rather than for arithmetic: the ratio of the two rates
// of a CPU with bf16 products, and more than that of one without.
constexpr int64_t kRowsPerRead = 8;
// Panels of one task, as each task prepares its rows anew, which costs most of a panel's product
// where that is not waiting for weights.
constexpr int64_t kPanelsPerPreparation = 16;

enum class Phase { kGateUp, kDown };

// Rows [row_begin, row_end) of a batch with some panels, in one phase.
struct Task {
  int32_t batch_index = 0;
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t panel_begin = 0;
  int32_t panel_end = 0;
};

// The rows that a thread has prepared last: tasks of the same rows follow each other.
struct ThreadRows {
  PreparedRows rows;
  int32_t batch_index = -1;  // none of this phase
  int32_t row_begin = 0;
};

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
int64_t WorkOfTask(const ExpertBatch& batch, Phase phase, const Task& task) {
  return MultiplyAdds(batch, phase, std::max<int64_t>(task.row_end - task.row_begin, kRowsPerRead),
                      task.panel_end - task.panel_begin);
}

// Cuts a phase into tasks of about `task_work`, by panels before rows: threads share an expert's
// panels, so that each weight is read once. Tasks of many rows may be larger, up to `max_work`.
void AppendTasks(const Kernels& kernels, const ExpertBatch& batch, int32_t batch_index, Phase phase,
                 int64_t task_work, int64_t max_work, std::vector<Task>& tasks) {
  const int64_t num_rows = NumRows(batch);
  if (num_rows == 0) return;
  const PackedMatrix& matrix = MatrixOf(batch, phase);
  const int64_t step = RowsPerCall(kernels, num_rows);
  const int64_t panel_work =
      std::max<int64_t>(1, MultiplyAdds(batch, phase, std::min(step, num_rows), 1));
  const int64_t least =
      num_rows < kRowsPerRead ? 1 : std::min(kPanelsPerPreparation, max_work / panel_work);
  const int64_t panels_per_task = std::max<int64_t>({1, task_work / panel_work, least});
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

// products: of the batch.
void RunTask(const Kernels& kernels, const ExpertBatch& batch, Phase phase, const Task& task,
             Bf16Rows rows, Bf16* products, ThreadRows& prepared) {
  const PackedMatrix& matrix = MatrixOf(batch, phase);
  const int64_t width = batch.weights->intermediate_size();
  if (prepared.batch_index != task.batch_index || prepared.row_begin != task.row_begin) {
    const Bf16* pointers[kMaxKernelRows];
    const int64_t count = task.row_end - task.row_begin;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t index = task.row_begin + r;
      pointers[r] = phase == Phase::kGateUp
                        ? rows.row(batch.row_indices[static_cast<size_t>(index)])
                        : products + index * width;
    }
    prepared.rows.Prepare(kernels, absl::MakeConstSpan(pointers, static_cast<size_t>(count)),
                          matrix);
    prepared.batch_index = task.batch_index;
    prepared.row_begin = task.row_begin;
  }
  PanelProduct product;
  product.matrix = &matrix;
  product.panel_begin = task.panel_begin;
  product.panel_end = task.panel_end;
  if (phase == Phase::kGateUp) {
    product.epilogue = Epilogue::kSwiGlu;
    product.out = products + task.row_begin * width;
    product.out_stride = width;
  } else {
    product.epilogue = Epilogue::kBf16;
    product.out = batch.out.row(task.row_begin);
    product.out_stride = batch.out.stride;
  }
  RunPanels(kernels, prepared.rows, product);
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

struct ExpertScratch::Memory {
  Array<Bf16> products;                // the SwiGLU products of all batches
  std::vector<int64_t> product_begin;  // by batch, into products
  std::vector<Task> tasks;             // of the phase that runs
  std::vector<ThreadRows> threads;
};

ExpertScratch::ExpertScratch() : memory_(std::make_unique<Memory>()) {}
ExpertScratch::~ExpertScratch() = default;
ExpertScratch::ExpertScratch(ExpertScratch&&) noexcept = default;
ExpertScratch& ExpertScratch::operator=(ExpertScratch&&) noexcept = default;

// One call of ForwardExperts.
class ExpertScratch::Pass {
 public:
  Pass(Executor& executor, const Kernels& kernels, absl::Span<const ExpertBatch> batches,
       Bf16Rows rows, Memory& memory)
      : executor_(executor), kernels_(kernels), batches_(batches), rows_(rows), memory_(memory) {}

  void Run(const ForwardPieces* pieces) {
    LayOut();
    piece_work_ = pieces == nullptr ? work_ : std::max<int64_t>(1, pieces->max_work);
    is_cut_ = work_ > piece_work_;
    for (const Phase phase : {Phase::kGateUp, Phase::kDown}) {
      CutTasks(phase);
      for (size_t begin = 0; begin < memory_.tasks.size();) {
        int64_t work = 0;
        const size_t end = is_cut_ ? PieceEnd(phase, begin, work) : memory_.tasks.size();
        RunTasks(phase, begin, end);
        begin = end;
        if (!is_cut_) continue;
        pieces->after(work, phase == Phase::kDown && end == memory_.tasks.size());
      }
    }
    if (pieces != nullptr && !is_cut_) pieces->after(work_, true);
  }

 private:
  // Where each batch's products start, and how much there is to do.
  void LayOut() {
    memory_.product_begin.clear();
    int64_t num_products = 0;
    for (const ExpertBatch& batch : batches_) {
      MOEBIUS_CHECK_EQ(batch.weights->hidden_size(), rows_.width);
      MOEBIUS_CHECK_EQ(batch.out.num_rows, NumRows(batch));
      MOEBIUS_CHECK_EQ(batch.out.width, batch.weights->hidden_size());
      memory_.product_begin.push_back(num_products);
      num_products += NumRows(batch) * batch.weights->intermediate_size();
      multiply_adds_[0] += MultiplyAdds(batch, Phase::kGateUp);
      multiply_adds_[1] += MultiplyAdds(batch, Phase::kDown);
      work_ += WorkOf(batch);
    }
    memory_.products.Resize(static_cast<size_t>(num_products));
    const auto num_threads = static_cast<size_t>(executor_.num_threads());
    if (memory_.threads.size() < num_threads) memory_.threads.resize(num_threads);
    is_inline_ = num_threads == 1 || multiply_adds_[0] + multiply_adds_[1] < kParallelThreshold;
  }

  void CutTasks(Phase phase) {
    const int64_t phase_work = std::min(multiply_adds_[static_cast<int>(phase)], piece_work_);
    const int64_t shared_work = phase_work / (kTasksPerThread * executor_.num_threads());
    const int64_t task_work =
        is_inline_ && !is_cut_ ? phase_work : std::max(kMinTaskWork, shared_work);
    memory_.tasks.clear();
    for (size_t b = 0; b < batches_.size(); ++b) {
      AppendTasks(kernels_, batches_[b], static_cast<int32_t>(b), phase, task_work, piece_work_,
                  memory_.tasks);
    }
    for (ThreadRows& thread : memory_.threads) thread.batch_index = -1;
  }

  // The tasks from `begin` that make one piece: one at least. `work` becomes theirs.
  size_t PieceEnd(Phase phase, size_t begin, int64_t& work) const {
    size_t end = begin;
    for (; end < memory_.tasks.size(); ++end) {
      const Task& task = memory_.tasks[end];
      const int64_t added =
          WorkOfTask(batches_[static_cast<size_t>(task.batch_index)], phase, task);
      if (end > begin && work + added > piece_work_) break;
      work += added;
    }
    return end;
  }

  void RunTasks(Phase phase, size_t begin, size_t end) {
    const auto run = [&](int64_t index, int thread) {
      const Task& task = memory_.tasks[begin + static_cast<size_t>(index)];
      const auto b = static_cast<size_t>(task.batch_index);
      RunTask(kernels_, batches_[b], phase, task, rows_,
              memory_.products.data() + memory_.product_begin[b],
              memory_.threads[static_cast<size_t>(thread)]);
    };
    const auto count = static_cast<int64_t>(end - begin);
    if (!is_inline_) return executor_.ParallelFor(count, run);
    for (int64_t index = 0; index < count; ++index) run(index, 0);
  }

  Executor& executor_;
  const Kernels& kernels_;
  const absl::Span<const ExpertBatch> batches_;
  const Bf16Rows rows_;
  Memory& memory_;
  int64_t multiply_adds_[2] = {0, 0};  // by phase
  int64_t work_ = 0;                   // as WorkOf counts
  int64_t piece_work_ = 0;
  bool is_cut_ = false;
  bool is_inline_ = false;
};

void ForwardExperts(Executor& executor, const Kernels& kernels,
                    absl::Span<const ExpertBatch> batches, Bf16Rows rows, ExpertScratch& scratch,
                    const ForwardPieces* pieces) {
  ExpertScratch::Pass(executor, kernels, batches, rows, *scratch.memory_).Run(pieces);
}

}  // namespace moebius
