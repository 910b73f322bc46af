// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/tensor/rows.h"
#include "moebius/tensor/weight_rows.h"

namespace moebius {

/// The sizes of one feed-forward expert (or slice) and how it is stored. A value.
struct ExpertShape {
  int64_t intermediate_size = 0;
  int64_t hidden_size = 0;
  std::optional<Fp8Rows> gate_up;  // the blocks, as PackedLayout::Of has them; null: bf16
  std::optional<Fp8Rows> down;

  PackedLayout GateUpLayout(PairOrder order) const {
    return PackedLayout::OfGateUp(intermediate_size, hidden_size, gate_up, order);
  }
  PackedLayout DownLayout(PairOrder order) const {
    return PackedLayout::Of(hidden_size, intermediate_size, down, order);
  }
};

/// The packed weights of one feed-forward expert (or slice): y = down · bf16(silu(gate·x) · up·x).
struct PackedExpert {
  PackedMatrix gate_up;  // PackGateUp of gate, up [I, H]
  PackedMatrix down;     // Pack of down [H, I]

  /// gate, up [I, H], down [H, I], in bf16 or FP8; gate and up are of one kind (PackGateUp).
  /// `storage`: BytesOf their shape zero bytes, 64-byte aligned, that outlive the expert, so that
  /// it is one stream; empty: allocations of its own.
  static PackedExpert Pack(const WeightRows& gate, const WeightRows& up, const WeightRows& down,
                           PairOrder order, absl::Span<uint8_t> storage = {});
  static int64_t BytesOf(const ExpertShape& shape);
  /// What Pack of this shape and order has left in `storage`, or a copy of that.
  static PackedExpert View(const ExpertShape& shape, PairOrder order, absl::Span<uint8_t> storage);

  int64_t hidden_size() const { return gate_up.depth(); }
  int64_t intermediate_size() const { return gate_up.num_outputs(); }
  size_t bytes() const { return gate_up.bytes() + down.bytes(); }
};

/// The rows that one expert answers for.
struct ExpertBatch {
  const PackedExpert* weights = nullptr;
  /// Indices into the call's input rows; a row may appear under many experts.
  absl::Span<const int32_t> row_indices;
  /// [row_indices.size(), H]: y_e rounded to bf16, in the order of row_indices.
  MutableBf16Rows out;
};

/// What a batch takes, in multiply-adds; fewer rows than a read of the weights pays for count as
/// that many (8). Pure.
int64_t WorkOf(const ExpertBatch& batch);

/// Cuts a call into pieces, after each of which something more urgent can run. An expert that is
/// more than one piece is cut by panels, so that its weights are still read once. No bit depends
/// on a cut.
struct ForwardPieces {
  int64_t max_work = 0;  // of a piece, as WorkOf counts; a call of no more is one piece
  /// After each piece, with its work, on the calling thread; may call ForwardExperts with another
  /// scratch.
  absl::FunctionRef<void(int64_t work, bool is_last)> after;
};

/// Memory that calls reuse. Not thread-safe: one per caller.
class ExpertScratch {
 public:
  ExpertScratch();
  ~ExpertScratch();
  ExpertScratch(ExpertScratch&&) noexcept;
  ExpertScratch& operator=(ExpertScratch&&) noexcept;

 private:
  friend void ForwardExperts(Executor&, const Kernels&, absl::Span<const ExpertBatch>, Bf16Rows,
                             ExpertScratch&, const ForwardPieces*);
  struct Memory;
  class Pass;
  std::unique_ptr<Memory> memory_;
};

/// Runs every batch: phase 1 tasks are ranges of gate-up panels with SwiGLU in registers, one
/// barrier, phase 2 tasks are ranges of down panels. Tiny calls run inline. Each output row's bits
/// depend on its input row and the expert only. Zero batches and empty batches are ordinary.
/// Allocates only while `scratch` grows. Must run on an executor thread. `rows` bf16 [T, H];
/// batches may not share `out` memory. `pieces` null: all in one.
void ForwardExperts(Executor& executor, const Kernels& kernels,
                    absl::Span<const ExpertBatch> batches, Bf16Rows rows, ExpertScratch& scratch,
                    const ForwardPieces* pieces = nullptr);

}  // namespace moebius
