// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"
#include "moebius/tensor/weight_rows.h"

namespace moebius {

/// Where element (k, column) of a 32 × 32 block lies among its kPanelBlockSize values.
/// 0 <= k < 32, 0 <= column < 32. The inverse of how every kernel reads a panel.
constexpr int64_t PanelBlockOffset(PairOrder order, int64_t k, int64_t column) {
  if (order == PairOrder::kAdjacent) return (k / 2 * kPanelColumns + column) * 2 + k % 2;
  // Group of four: 4j → (pair 2j, high), 4j+1 → (2j+1, high), 4j+2 → (2j, low), 4j+3 → (2j+1, low).
  const int64_t pair = k / 4 * 2 + k % 2;
  return (pair * kPanelColumns + column) * 2 + (k % 4 < 2 ? 1 : 0);
}

/// Where the code of the value at `offset` of a block lies among the block's kPanelBlockSize codes:
/// in each run of 64, in lanes of 16 codes whose low and high halves interleave to consecutive
/// values of the run's first and second half (kernel_calls.h, DecodeFp8Blocks).
constexpr int64_t Fp8CodeOffset(int64_t offset) {
  const int64_t run = offset / 64 * 64;
  const int64_t value = offset % 64;
  return run + value % 32 / 8 * 16 + value / 32 * 8 + value % 8;
}

/// The runs of K that share a scale, as the blocks of a checkpoint cut them: the first run may be
/// shorter than the others, where a matrix begins inside a block, and the last one, too. Each run
/// is padded to whole blocks of 32 K. In bf16 all of K is one run.
struct DepthGroups {
  int64_t first_depth = 0;  // of the first run; all of K where there is one
  int64_t depth = 0;        // of every further run but the last
  int64_t num_groups = 0;
  /// K of run `index`: [Begin(index), Begin(index) + DepthOf(index)).
  int64_t Begin(int64_t index) const { return index == 0 ? 0 : first_depth + (index - 1) * depth; }
  int64_t DepthOf(int64_t index, int64_t total_depth) const {
    const int64_t end = index + 1 == num_groups ? total_depth : Begin(index + 1);
    return end - Begin(index);
  }
};

/// Everything that the bytes of a packed matrix follow from, beside its weights. A value.
struct PackedLayout {
  WeightType type = WeightType::kBf16;
  PairOrder order = PairOrder::kAdjacent;
  int64_t num_outputs = 0;
  int64_t depth = 0;
  int64_t outputs_per_panel = kPanelColumns;  // 16 of gate-up matrices
  DepthGroups groups;

  /// Of a matrix [num_outputs, depth]; of `blocks` the columns' size and offset count (null: bf16).
  static PackedLayout Of(int64_t num_outputs, int64_t depth, const std::optional<Fp8Rows>& blocks,
                         PairOrder order);
  /// Of gate and up [num_outputs, depth] in one matrix.
  static PackedLayout OfGateUp(int64_t num_outputs, int64_t depth,
                               const std::optional<Fp8Rows>& blocks, PairOrder order);

  int64_t num_panels() const { return (num_outputs + outputs_per_panel - 1) / outputs_per_panel; }
  int64_t num_blocks() const;  // of a panel
  /// What the matrix takes, a multiple of 64, whatever its order. bf16: num_panels · num_blocks
  /// blocks of kPanelBlockSize values. FP8: as many blocks of codes, then fp32 scales [num_panels,
  /// num_groups, kPanelColumns].
  size_t bytes() const;
};

/// Names the bytes that packing makes of given weights: equal names, equal bytes. `types` says what
/// the weights are stored in ("bf16", "fp8-128x128"). The number at the end grows when the layout
/// changes, so that what was kept on a disk is not taken for it.
std::string PackedLayoutName(absl::string_view types, PairOrder order);

/// Weights [num_outputs, depth] in bf16 or FP8, packed once at load for one pair order: panels of
/// 32 outputs, each ceil(depth / 32) blocks of kPanelBlockSize values (more where groups of FP8 are
/// padded). Padding in both directions is +0. One contiguous range, 64-byte aligned: an allocation
/// of its own (2 MiB-aligned with huge pages where that large), or `storage` of somebody who
/// outlives it (an arena).
/// Immutable and thread-safe after construction; moves, never copies.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// `weights` [N, K], one row per output as checkpoints store them. `storage`: as many zero bytes
  /// as the layout says, 64-byte aligned; empty: an allocation.
  static PackedMatrix Pack(const WeightRows& weights, PairOrder order,
                           absl::Span<uint8_t> storage = {});

  /// Several matrices of the same K and type as one, their outputs in order. FP8: their blocks have
  /// the same columns. `storage` as above.
  static PackedMatrix PackStack(absl::Span<const WeightRows> parts, PairOrder order,
                                absl::Span<uint8_t> storage = {});

  /// gate and up [I, H] of one FFN, of the same type (FP8: and the same block columns): each panel
  /// holds 16 gate columns, then the same 16 of up, for Epilogue::kSwiGlu. num_outputs() is I.
  /// `storage` as above.
  static PackedMatrix PackGateUp(const WeightRows& gate, const WeightRows& up, PairOrder order,
                                 absl::Span<uint8_t> storage = {});

  /// What packing in this layout has left in `storage`, or in other bytes that these are a copy of.
  static PackedMatrix View(const PackedLayout& layout, absl::Span<uint8_t> storage);

  const PackedLayout& layout() const { return layout_; }
  bool is_fp8() const { return layout_.type == WeightType::kFp8; }
  int64_t num_outputs() const { return layout_.num_outputs; }
  int64_t depth() const { return layout_.depth; }
  int64_t num_panels() const { return num_panels_; }
  int64_t num_blocks() const { return num_blocks_; }
  bool is_gate_up() const { return layout_.outputs_per_panel != kPanelColumns; }
  int64_t outputs_per_panel() const { return layout_.outputs_per_panel; }
  PairOrder pair_order() const { return layout_.order; }
  const DepthGroups& groups() const { return layout_.groups; }
  /// Of bf16 weights.
  const uint16_t* panel(int64_t index) const {
    return static_cast<const uint16_t*>(buffer_.data()) + index * num_blocks_ * kPanelBlockSize;
  }
  /// Of FP8 weights: a panel's codes, and its scales [num_groups, kPanelColumns].
  const uint8_t* panel_codes(int64_t index) const {
    return static_cast<const uint8_t*>(buffer_.data()) + index * num_blocks_ * kPanelBlockSize;
  }
  const float* panel_scales(int64_t index) const {
    return reinterpret_cast<const float*>(panel_codes(num_panels_)) +
           index * layout_.groups.num_groups * kPanelColumns;
  }
  /// Memory held, padding included.
  size_t bytes() const { return buffer_.size_bytes(); }

 private:
  PackedMatrix(const PackedLayout& layout, absl::Span<uint8_t> storage);
  // Writes rows of `weights` as outputs from `first_output` on, output i of a panel in its column
  // first_column + i.
  void Fill(const WeightRows& weights, int64_t first_output, int64_t first_column);
  void FillBlock(const WeightRows& weights, int64_t row, int64_t k_begin, int64_t k_count,
                 int64_t block, int64_t column);
  void FillScales(const Fp8Rows& weights, int64_t row, int64_t panel, int64_t column);

  PackedLayout layout_;
  int64_t num_panels_ = 0;
  int64_t num_blocks_ = 0;
  Buffer buffer_;
};

}  // namespace moebius
