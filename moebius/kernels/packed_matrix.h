// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// Where element (k, column) of a 32 × 32 block lies among its kPanelBlockSize values.
/// 0 <= k < 32, 0 <= column < 32. The inverse of how every kernel reads a panel.
constexpr int64_t PanelBlockOffset(PairOrder order, int64_t k, int64_t column) {
  if (order == PairOrder::kAdjacent) return (k / 2 * kPanelColumns + column) * 2 + k % 2;
  // Group of four: 4j → (pair 2j, high), 4j+1 → (2j+1, high), 4j+2 → (2j, low), 4j+3 → (2j+1, low).
  const int64_t pair = k / 4 * 2 + k % 2;
  return (pair * kPanelColumns + column) * 2 + (k % 4 < 2 ? 1 : 0);
}

/// Names the bytes that packing makes of given weights: equal names, equal bytes. The number at the
/// end grows when the layout changes, so that what was kept on a disk is not taken for it.
std::string PackedLayoutName(PairOrder order);

/// Weights [num_outputs, depth] in bf16, packed once at load for one pair order: panels of 32
/// outputs, each ceil(depth / 32) blocks of kPanelBlockSize values. Padding in both directions is
/// +0. One contiguous range, 64-byte aligned: an allocation of its own (2 MiB-aligned with huge
/// pages where that large), or `storage` of somebody who outlives it (an arena).
/// Immutable and thread-safe after construction; moves, never copies.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// `weights` [N, K], one row per output as checkpoints store them. `storage`: BytesOf(N, K) zero
  /// bytes, 64-byte aligned; empty: an allocation.
  static PackedMatrix Pack(Bf16Rows weights, PairOrder order, absl::Span<uint8_t> storage = {});
  static int64_t BytesOf(int64_t num_outputs, int64_t depth);

  /// gate and up [I, H] of one FFN: each panel holds 16 gate columns, then the same 16 of up, for
  /// Epilogue::kSwiGlu. num_outputs() is I. `storage` as above, BytesOfGateUp(I, H).
  static PackedMatrix PackGateUp(Bf16Rows gate, Bf16Rows up, PairOrder order,
                                 absl::Span<uint8_t> storage = {});
  static int64_t BytesOfGateUp(int64_t num_outputs, int64_t depth);

  /// What Pack or PackGateUp of this shape and order have left in `storage`, or in other bytes that
  /// these are a copy of.
  static PackedMatrix View(int64_t num_outputs, int64_t depth, PairOrder order,
                           absl::Span<uint8_t> storage);
  static PackedMatrix ViewGateUp(int64_t num_outputs, int64_t depth, PairOrder order,
                                 absl::Span<uint8_t> storage);

  int64_t num_outputs() const { return num_outputs_; }
  int64_t depth() const { return depth_; }
  int64_t num_panels() const { return num_panels_; }
  int64_t num_blocks() const { return num_blocks_; }
  bool is_gate_up() const { return outputs_per_panel_ != kPanelColumns; }
  int64_t outputs_per_panel() const { return outputs_per_panel_; }
  PairOrder pair_order() const { return order_; }
  const uint16_t* panel(int64_t index) const {
    return static_cast<const uint16_t*>(buffer_.data()) + index * num_blocks_ * kPanelBlockSize;
  }
  /// Memory held, padding included.
  size_t bytes() const { return buffer_.size_bytes(); }

 private:
  PackedMatrix(int64_t num_outputs, int64_t depth, int64_t outputs_per_panel, PairOrder order,
               absl::Span<uint8_t> storage);
  // Writes output i of each panel into its column first_column + i.
  void FillColumns(Bf16Rows weights, int64_t first_column);

  int64_t num_outputs_ = 0;
  int64_t depth_ = 0;
  int64_t outputs_per_panel_ = kPanelColumns;
  int64_t num_panels_ = 0;
  int64_t num_blocks_ = 0;
  PairOrder order_ = PairOrder::kAdjacent;
  Buffer buffer_;
};

}  // namespace moebius
