// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/attention_rows.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tile_block_sum.h"

/// A key block's step over a tile unit. The unit works by itself while the vectors do: the softmax
/// of some rows runs beside the block sums of the rows before and behind them.
namespace moebius {
namespace {

/// The softmax of the rows [row_begin, row_end), a few steps at each call.
template <class V>
class SoftmaxInSteps {
 public:
  /// `num_calls` calls are to come, or fewer and Finish.
  SoftmaxInSteps(const WeighBlockCall& call, int64_t row_begin, int64_t row_end, int64_t num_calls)
      : rows_(call), next_row_(row_begin), row_end_(row_end) {
    const int64_t num_rows = row_end - row_begin;
    const int64_t num_steps = 2 * (num_rows + (num_rows + kStateRows - 1) / kStateRows);
    if (num_calls > 0) steps_per_call_ = (num_steps + num_calls - 1) / num_calls;
  }

  void operator()() {
    for (int64_t i = 0; i < steps_per_call_ && !done(); ++i) Step();
  }
  void Finish() {
    while (!done()) Step();
  }

 private:
  bool done() const { return step_ == num_steps_ && next_row_ >= row_end_; }
  void Step() {
    if (step_ == num_steps_) {
      rows_.Start(next_row_);
      next_row_ += kStateRows;
      step_ = 0;
      num_steps_ = rows_.num_steps();
    }
    rows_.Step(step_++);
  }

  RowSoftmax<V, RowForm::kBf16> rows_;  // the kStateRows rows before next_row_
  int step_ = 0;
  int num_steps_ = 0;
  int64_t next_row_;
  const int64_t row_end_;
  int64_t steps_per_call_ = 0;
};

/// One call, in groups of as many rows as two tiles have.
template <class V, class Unit>
class TileAttention {
 public:
  explicit TileAttention(const AttendBlockCall& call) : call_(call) {}

  void Run() {
    Sum(call_.scores, 0, Nothing());
    for (int64_t group = 0; group < num_groups(); ++group) {
      const bool has_former = group > 0;
      const bool has_next = group + 1 < num_groups();
      SoftmaxInSteps<V> softmax(
          call_.weigh, Begin(group), Begin(group + 1),
          (has_former ? NumBlocks(call_.values) : 0) + (has_next ? NumBlocks(call_.scores) : 0));
      const auto some = [&softmax] { softmax(); };
      if (has_former) Sum(call_.values, group - 1, some);
      if (has_next) Sum(call_.scores, group + 1, some);
      softmax.Finish();
    }
    Sum(call_.values, num_groups() - 1, Nothing());
    Unit::Release();
  }

 private:
  static constexpr int64_t kGroupRows = 2 * kTileRows;

  static int64_t NumBlocks(const BlockSumCall& sums) { return sums.num_panels * sums.num_blocks; }
  int64_t num_groups() const { return (call_.weigh.num_rows + kGroupRows - 1) / kGroupRows; }
  int64_t Begin(int64_t group) const {
    const int64_t begin = group * kGroupRows;
    return begin < call_.weigh.num_rows ? begin : call_.weigh.num_rows;
  }

  template <class Beside>
  MOEBIUS_ALWAYS_INLINE void Sum(const BlockSumCall& sums, int64_t group, Beside beside) {
    TileBlockSum<V, Unit, Beside> rows(sums, Begin(group), Begin(group + 1), beside);
    if (rows.tile_rows() != configured_rows_) {
      if (configured_rows_ > 0) Unit::Release();
      ConfigureTiles<Unit>(rows.tile_rows());
      configured_rows_ = rows.tile_rows();
    }
    rows.Sum();
  }

  const AttendBlockCall& call_;
  int64_t configured_rows_ = 0;  // of a tile; 0 before the first sum
};

/// The attention kernels of a tier that has the unit, which count their calls.
template <class V, class Unit>
struct TileAttentionKernels {
  static inline uint64_t attended = 0;

  static void AttendBlock(const AttendBlockCall& call) {
    CountExecution(&attended);
    if (call.weigh.num_rows > 0) TileAttention<V, Unit>(call).Run();
  }

  static constexpr AttentionKernels kKernels = {
      .weigh_block = WeighBlock<V>, .attend_block = AttendBlock, .attended = &attended};
};

}  // namespace
}  // namespace moebius
