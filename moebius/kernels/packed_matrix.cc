// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/packed_matrix.h"

#include <algorithm>
#include <array>

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr int64_t kGateUpOutputs = kPanelColumns / 2;

constexpr int64_t CeilDivide(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

int64_t BytesOfPanels(int64_t num_outputs, int64_t depth, int64_t outputs_per_panel) {
  return CeilDivide(num_outputs, outputs_per_panel) * CeilDivide(depth, kBlockDepth) *
         kPanelBlockSize * static_cast<int64_t>(sizeof(uint16_t));
}

// Where k of column 0 lies in a block; a column further is two values further.
std::array<int64_t, kBlockDepth> FirstColumnOffsets(PairOrder order) {
  std::array<int64_t, kBlockDepth> offsets;
  for (int k = 0; k < kBlockDepth; ++k) offsets[k] = PanelBlockOffset(order, k, 0);
  return offsets;
}

}  // namespace

std::string PackedLayoutName(PairOrder order) {
  return order == PairOrder::kAdjacent ? "bf16-32x32-adjacent-1" : "bf16-32x32-within-chain-1";
}

PackedMatrix::PackedMatrix(int64_t num_outputs, int64_t depth, int64_t outputs_per_panel,
                           PairOrder order, absl::Span<uint8_t> storage)
    : num_outputs_(num_outputs),
      depth_(depth),
      outputs_per_panel_(outputs_per_panel),
      num_panels_(CeilDivide(num_outputs, outputs_per_panel)),
      num_blocks_(CeilDivide(depth, kBlockDepth)),
      order_(order) {
  const size_t bytes = static_cast<size_t>(BytesOfPanels(num_outputs, depth, outputs_per_panel));
  if (storage.empty()) {
    buffer_ = Buffer(bytes);
    return;
  }
  MOEBIUS_CHECK_EQ(storage.size(), bytes);
  buffer_ = Buffer::Borrow(storage);
}

void PackedMatrix::FillColumns(Bf16Rows weights, int64_t first_column) {
  MOEBIUS_CHECK_EQ(weights.num_rows, num_outputs_);
  MOEBIUS_CHECK_EQ(weights.width, depth_);
  const std::array<int64_t, kBlockDepth> offsets = FirstColumnOffsets(order_);
  uint16_t* const panels = static_cast<uint16_t*>(buffer_.data());
  for (int64_t panel = 0; panel < num_panels_; ++panel) {
    const int64_t first_output = panel * outputs_per_panel_;
    const int64_t count = std::min(outputs_per_panel_, num_outputs_ - first_output);
    // Block by block, so that the 2 KiB that a block's columns share stay in cache.
    for (int64_t block = 0; block < num_blocks_; ++block) {
      uint16_t* const target = panels + (panel * num_blocks_ + block) * kPanelBlockSize;
      const int64_t k_begin = block * kBlockDepth;
      const int64_t k_count = std::min<int64_t>(kBlockDepth, depth_ - k_begin);
      for (int64_t output = 0; output < count; ++output) {
        const Bf16* const source = weights.row(first_output + output) + k_begin;
        uint16_t* const column = target + (first_column + output) * 2;
        for (int64_t k = 0; k < k_count; ++k) column[offsets[k]] = source[k].bits;
      }
    }
  }
}

PackedMatrix PackedMatrix::Pack(Bf16Rows weights, PairOrder order, absl::Span<uint8_t> storage) {
  PackedMatrix packed(weights.num_rows, weights.width, kPanelColumns, order, storage);
  packed.FillColumns(weights, 0);
  return packed;
}

int64_t PackedMatrix::BytesOf(int64_t num_outputs, int64_t depth) {
  return BytesOfPanels(num_outputs, depth, kPanelColumns);
}

PackedMatrix PackedMatrix::PackGateUp(Bf16Rows gate, Bf16Rows up, PairOrder order,
                                      absl::Span<uint8_t> storage) {
  PackedMatrix packed(gate.num_rows, gate.width, kGateUpOutputs, order, storage);
  packed.FillColumns(gate, 0);
  packed.FillColumns(up, kGateUpOutputs);
  return packed;
}

int64_t PackedMatrix::BytesOfGateUp(int64_t num_outputs, int64_t depth) {
  return BytesOfPanels(num_outputs, depth, kGateUpOutputs);
}

PackedMatrix PackedMatrix::View(int64_t num_outputs, int64_t depth, PairOrder order,
                                absl::Span<uint8_t> storage) {
  return PackedMatrix(num_outputs, depth, kPanelColumns, order, storage);
}

PackedMatrix PackedMatrix::ViewGateUp(int64_t num_outputs, int64_t depth, PairOrder order,
                                      absl::Span<uint8_t> storage) {
  return PackedMatrix(num_outputs, depth, kGateUpOutputs, order, storage);
}

}  // namespace moebius
