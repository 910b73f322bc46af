// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/packed_matrix.h"

#include <algorithm>
#include <array>

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr int64_t CeilDivide(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Where k of column 0 lies in a block; a column further is two values further.
std::array<int64_t, kBlockDepth> FirstColumnOffsets(PairOrder order) {
  std::array<int64_t, kBlockDepth> offsets;
  for (int k = 0; k < kBlockDepth; ++k) offsets[k] = PanelBlockOffset(order, k, 0);
  return offsets;
}

}  // namespace

PackedMatrix::PackedMatrix(int64_t num_outputs, int64_t depth, int64_t outputs_per_panel,
                           PairOrder order)
    : num_outputs_(num_outputs),
      depth_(depth),
      outputs_per_panel_(outputs_per_panel),
      num_panels_(CeilDivide(num_outputs, outputs_per_panel)),
      num_blocks_(CeilDivide(depth, kBlockDepth)),
      order_(order),
      buffer_(static_cast<size_t>(num_panels_ * num_blocks_ * kPanelBlockSize) * sizeof(uint16_t)) {
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

PackedMatrix PackedMatrix::Pack(Bf16Rows weights, PairOrder order) {
  PackedMatrix packed(weights.num_rows, weights.width, kPanelColumns, order);
  packed.FillColumns(weights, 0);
  return packed;
}

PackedMatrix PackedMatrix::PackGateUp(Bf16Rows gate, Bf16Rows up, PairOrder order) {
  constexpr int64_t kOutputs = kPanelColumns / 2;
  PackedMatrix packed(gate.num_rows, gate.width, kOutputs, order);
  packed.FillColumns(gate, 0);
  packed.FillColumns(up, kOutputs);
  return packed;
}

}  // namespace moebius
