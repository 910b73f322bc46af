// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/packed_matrix.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr int64_t kGateUpOutputs = kPanelColumns / 2;

constexpr int64_t CeilDivide(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Where k of column 0 lies in a block; a column further is two values further.
constexpr std::array<int64_t, kBlockDepth> FirstColumnOffsets(PairOrder order) {
  std::array<int64_t, kBlockDepth> offsets = {};
  for (int k = 0; k < kBlockDepth; ++k) offsets[k] = PanelBlockOffset(order, k, 0);
  return offsets;
}

constexpr std::array<int64_t, kPanelBlockSize> CodeOffsets() {
  std::array<int64_t, kPanelBlockSize> offsets = {};
  for (int64_t i = 0; i < kPanelBlockSize; ++i) offsets[i] = Fp8CodeOffset(i);
  return offsets;
}

DepthGroups MakeGroups(int64_t depth, const std::optional<Fp8Rows>& blocks) {
  DepthGroups groups{depth, depth, 1};
  if (!blocks.has_value() || depth == 0) return groups;
  groups.depth = std::min(blocks->block_columns, depth);
  groups.first_depth = std::min(blocks->block_columns - blocks->column_offset, depth);
  groups.num_groups = 1 + CeilDivide(depth - groups.first_depth, groups.depth);
  return groups;
}

// Matrices that share panels are of one kind.
void CheckAlike(const WeightRows& a, const WeightRows& b) {
  MOEBIUS_CHECK_EQ(a.width(), b.width());
  MOEBIUS_CHECK(a.type == b.type);
  if (!a.is_fp8()) return;
  MOEBIUS_CHECK_EQ(a.fp8.block_columns, b.fp8.block_columns);
  MOEBIUS_CHECK_EQ(a.fp8.column_offset, b.fp8.column_offset);
}

}  // namespace

int64_t PackedLayout::num_blocks() const {
  int64_t blocks = 0;
  for (int64_t group = 0; group < groups.num_groups; ++group) {
    blocks += CeilDivide(groups.DepthOf(group, depth), kBlockDepth);
  }
  return blocks;
}

size_t PackedLayout::bytes() const {
  const auto values = static_cast<size_t>(num_panels() * num_blocks() * kPanelBlockSize);
  if (type == WeightType::kBf16) return values * sizeof(Bf16);
  const auto scales = static_cast<size_t>(num_panels() * groups.num_groups * kPanelColumns);
  return values + scales * sizeof(float);
}

PackedLayout PackedLayout::Of(int64_t num_outputs, int64_t depth,
                              const std::optional<Fp8Rows>& blocks, PairOrder order) {
  PackedLayout layout;
  layout.type = blocks.has_value() ? WeightType::kFp8 : WeightType::kBf16;
  layout.order = order;
  layout.num_outputs = num_outputs;
  layout.depth = depth;
  layout.groups = MakeGroups(depth, blocks);
  return layout;
}

PackedLayout PackedLayout::OfGateUp(int64_t num_outputs, int64_t depth,
                                    const std::optional<Fp8Rows>& blocks, PairOrder order) {
  PackedLayout layout = Of(num_outputs, depth, blocks, order);
  layout.outputs_per_panel = kGateUpOutputs;
  return layout;
}

std::string PackedLayoutName(absl::string_view types, PairOrder order) {
  return absl::StrCat(
      types, order == PairOrder::kAdjacent ? "-32x32-adjacent-1" : "-32x32-within-chain-1");
}

PackedMatrix::PackedMatrix(const PackedLayout& layout, absl::Span<uint8_t> storage)
    : layout_(layout), num_panels_(layout.num_panels()), num_blocks_(layout.num_blocks()) {
  if (storage.empty()) {
    buffer_ = Buffer(layout.bytes());
    return;
  }
  MOEBIUS_CHECK_EQ(storage.size(), layout.bytes());
  buffer_ = Buffer::Borrow(storage);
}

void PackedMatrix::FillBlock(const WeightRows& weights, int64_t row, int64_t k_begin,
                             int64_t k_count, int64_t block, int64_t column) {
  static constexpr auto kOffsets = std::array{FirstColumnOffsets(PairOrder::kAdjacent),
                                              FirstColumnOffsets(PairOrder::kWithinChain)};
  static constexpr std::array<int64_t, kPanelBlockSize> kCodeOffsets = CodeOffsets();
  const auto& offsets = kOffsets[layout_.order == PairOrder::kAdjacent ? 0 : 1];
  if (!is_fp8()) {
    uint16_t* const target =
        static_cast<uint16_t*>(buffer_.data()) + block * kPanelBlockSize + column * 2;
    const Bf16* const source = weights.bf16.row(row) + k_begin;
    for (int64_t k = 0; k < k_count; ++k) target[offsets[k]] = source[k].bits;
    return;
  }
  uint8_t* const target = static_cast<uint8_t*>(buffer_.data()) + block * kPanelBlockSize;
  const uint8_t* const source = weights.fp8.codes.row(row) + k_begin;
  for (int64_t k = 0; k < k_count; ++k) {
    target[kCodeOffsets[static_cast<size_t>(offsets[k] + column * 2)]] = source[k];
  }
}

void PackedMatrix::FillScales(const Fp8Rows& weights, int64_t row, int64_t panel, int64_t column) {
  const DepthGroups& groups = layout_.groups;
  float* const scales = reinterpret_cast<float*>(static_cast<uint8_t*>(buffer_.data()) +
                                                 num_panels_ * num_blocks_ * kPanelBlockSize);
  for (int64_t group = 0; group < groups.num_groups; ++group) {
    scales[(panel * groups.num_groups + group) * kPanelColumns + column] =
        weights.scale(row, groups.Begin(group));
  }
}

void PackedMatrix::Fill(const WeightRows& weights, int64_t first_output, int64_t first_column) {
  const DepthGroups& groups = layout_.groups;
  const int64_t outputs = layout_.outputs_per_panel;
  const int64_t end_output = first_output + weights.num_rows();
  for (int64_t begin = first_output; begin < end_output;) {
    const int64_t panel = begin / outputs;
    const int64_t end = std::min((panel + 1) * outputs, end_output);
    int64_t block = panel * num_blocks_;
    for (int64_t group = 0; group < groups.num_groups; ++group) {
      const int64_t group_end = groups.Begin(group) + groups.DepthOf(group, layout_.depth);
      // Block by block, so that the 2 KiB that a block's columns share stay in cache.
      for (int64_t k = groups.Begin(group); k < group_end; k += kBlockDepth, ++block) {
        const int64_t count = std::min<int64_t>(kBlockDepth, group_end - k);
        for (int64_t output = begin; output < end; ++output) {
          FillBlock(weights, output - first_output, k, count, block,
                    first_column + output % outputs);
        }
      }
    }
    for (int64_t output = begin; is_fp8() && output < end; ++output) {
      FillScales(weights.fp8, output - first_output, panel, first_column + output % outputs);
    }
    begin = end;
  }
}

PackedMatrix PackedMatrix::Pack(const WeightRows& weights, PairOrder order,
                                absl::Span<uint8_t> storage) {
  return PackStack(absl::MakeConstSpan(&weights, 1), order, storage);
}

PackedMatrix PackedMatrix::PackStack(absl::Span<const WeightRows> parts, PairOrder order,
                                     absl::Span<uint8_t> storage) {
  int64_t num_outputs = 0;
  for (const WeightRows& part : parts) {
    CheckAlike(parts[0], part);
    num_outputs += part.num_rows();
  }
  PackedMatrix packed(PackedLayout::Of(num_outputs, parts[0].width(), parts[0].blocks(), order),
                      storage);
  int64_t first_output = 0;
  for (const WeightRows& part : parts) {
    packed.Fill(part, first_output, 0);
    first_output += part.num_rows();
  }
  return packed;
}

PackedMatrix PackedMatrix::PackGateUp(const WeightRows& gate, const WeightRows& up, PairOrder order,
                                      absl::Span<uint8_t> storage) {
  CheckAlike(gate, up);
  MOEBIUS_CHECK_EQ(gate.num_rows(), up.num_rows());
  PackedMatrix packed(PackedLayout::OfGateUp(gate.num_rows(), gate.width(), gate.blocks(), order),
                      storage);
  packed.Fill(gate, 0, 0);
  packed.Fill(up, 0, kGateUpOutputs);
  return packed;
}

PackedMatrix PackedMatrix::View(const PackedLayout& layout, absl::Span<uint8_t> storage) {
  return PackedMatrix(layout, storage);
}

}  // namespace moebius
