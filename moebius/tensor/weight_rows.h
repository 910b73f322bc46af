// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/fp8.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// What a weight matrix is stored in, in a checkpoint and in memory.
enum class WeightType : uint8_t { kBf16, kFp8 };

/// A view of a weight matrix [num_rows, width] in either type.
struct WeightRows {
  WeightType type = WeightType::kBf16;
  Bf16Rows bf16;  // kBf16
  Fp8Rows fp8;    // kFp8

  WeightRows() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): bf16 rows are weights as they are
  WeightRows(Bf16Rows rows) : bf16(rows) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightRows(MutableBf16Rows rows) : bf16(rows) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightRows(Fp8Rows rows) : type(WeightType::kFp8), fp8(rows) {}

  bool is_fp8() const { return type == WeightType::kFp8; }
  int64_t num_rows() const { return is_fp8() ? fp8.codes.num_rows : bf16.num_rows; }
  int64_t width() const { return is_fp8() ? fp8.codes.width : bf16.width; }

  /// Of FP8: the blocks that the rows are cut into, without codes and scales. bf16: null.
  std::optional<Fp8Rows> blocks() const {
    if (!is_fp8()) return std::nullopt;
    Fp8Rows found = fp8;
    found.codes = {};
    found.scales = {};
    return found;
  }

  /// Rows [begin, end).
  WeightRows Slice(int64_t begin, int64_t end) const {
    if (!is_fp8()) return bf16.Slice(begin, end);
    Fp8Rows part = fp8;
    part.codes = fp8.codes.Slice(begin, end);
    const int64_t skipped = (fp8.row_offset + begin) / fp8.block_rows;
    part.row_offset = (fp8.row_offset + begin) % fp8.block_rows;
    part.scales = fp8.scales.Slice(std::min(skipped, fp8.scales.num_rows), fp8.scales.num_rows);
    return part;
  }
};

/// A weight matrix that owns its memory. Moves, never copies.
class WeightMatrix {
 public:
  /// Empty: [0, 0].
  WeightMatrix() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): bf16 rows are weights as they are
  WeightMatrix(RowBatch<Bf16> rows) : bf16_(std::move(rows)) {}

  /// Memory for codes [num_rows, width] in blocks whose first begins `row_offset` and
  /// `column_offset` before the matrix; contents are unspecified.
  static WeightMatrix MakeFp8(int64_t num_rows, int64_t width, const Fp8Rows& blocks) {
    WeightMatrix matrix;
    matrix.layout_ = WeightRows(blocks);
    matrix.codes_.Reset(num_rows, width);
    matrix.scales_.Reset(NumBlocks(blocks.row_offset, num_rows, blocks.block_rows),
                         NumBlocks(blocks.column_offset, width, blocks.block_columns));
    return matrix;
  }

  bool is_fp8() const { return layout_.is_fp8(); }
  int64_t num_rows() const { return is_fp8() ? codes_.num_rows() : bf16_.num_rows(); }
  int64_t width() const { return is_fp8() ? codes_.width() : bf16_.width(); }

  WeightRows rows() const {
    if (!is_fp8()) return bf16_.rows();
    Fp8Rows view = layout_.fp8;
    view.codes = codes_.rows();
    view.scales = scales_.rows();
    return view;
  }
  /// Of bf16 weights; empty for others.
  RowBatch<Bf16>& bf16() { return bf16_; }
  const RowBatch<Bf16>& bf16() const { return bf16_; }
  /// Of bf16 weights: hands them over and is empty afterwards.
  RowBatch<Bf16> TakeBf16() { return std::move(bf16_); }
  /// Of FP8 weights, to be filled.
  Rows<uint8_t> codes() { return codes_.rows(); }
  MutableFloatRows scales() { return scales_.rows(); }

  /// The blocks that cover `count` elements from `offset` inside the first one on.
  static int64_t NumBlocks(int64_t offset, int64_t count, int64_t block) {
    return (offset + count + block - 1) / block;
  }

 private:
  WeightRows layout_;  // views nothing: the type and the blocks
  RowBatch<Bf16> bf16_;
  RowBatch<uint8_t> codes_;
  RowBatch<float> scales_;
};

}  // namespace moebius
