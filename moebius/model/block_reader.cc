// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/block_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/tensor/fp8.h"

namespace moebius {
namespace {

constexpr size_t kReadBytes = 1u << 20;

absl::Status BadValue(const TensorDirectory::Entry& entry, absl::string_view what, int64_t row,
                      int64_t column) {
  return WithHint(absl::DataLossError(absl::StrCat(entry.file->base_name(), ": ",
                                                   PrintableName(entry.info->name), " has ", what,
                                                   " at [", row, ", ", column, "]")),
                  "run `moebius model verify` and fetch the file again");
}

absl::Status ReadCodes(const StoredFp8& stored, const MatrixBlock& block, Rows<uint8_t> codes) {
  MOEBIUS_RETURN_IF_ERROR(ReadMatrixBlock(
      stored.codes, stored.width, block,
      [&](int64_t row, const uint8_t* bytes) { std::copy_n(bytes, codes.width, codes.row(row)); }));
  for (int64_t row = 0; row < codes.num_rows; ++row) {
    for (int64_t column = 0; column < codes.width; ++column) {
      const uint8_t code = codes.row(row)[column];
      if (IsFiniteFp8(code)) continue;
      return BadValue(stored.codes,
                      absl::StrFormat("the code 0x%02X, which is no number,", int{code}),
                      block.row_begin + row, block.col_begin + column);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadScales(const StoredFp8& stored, const MatrixBlock& blocks,
                        MutableFloatRows scales) {
  const int64_t width = stored.scales.info->shape[1];
  MOEBIUS_RETURN_IF_ERROR(
      ReadMatrixBlock(stored.scales, width, blocks, [&](int64_t row, const uint8_t* bytes) {
        std::memcpy(scales.row(row), bytes, static_cast<size_t>(scales.width) * sizeof(float));
      }));
  for (int64_t row = 0; row < scales.num_rows; ++row) {
    for (int64_t column = 0; column < scales.width; ++column) {
      const float scale = scales.row(row)[column];
      if (std::isfinite(scale) && scale >= std::numeric_limits<float>::min()) continue;
      return BadValue(stored.scales,
                      absl::StrFormat("the scale %g, which is no positive normal number,",
                                      static_cast<double>(scale)),
                      blocks.row_begin + row, blocks.col_begin + column);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMatrixBlock(const TensorDirectory::Entry& entry, int64_t matrix_width,
                             const MatrixBlock& block,
                             absl::FunctionRef<void(int64_t row, const uint8_t* stored)> consume) {
  const size_t element_bytes = DTypeBytes(entry.info->dtype);
  const size_t row_bytes = static_cast<size_t>(matrix_width) * element_bytes;
  const int64_t rows_at_once =
      std::max<int64_t>(1, static_cast<int64_t>(kReadBytes / std::max<size_t>(row_bytes, 1)));
  std::vector<uint8_t> bytes;
  for (int64_t row = block.row_begin; row < block.row_end; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, block.row_end - row);
    bytes.resize(static_cast<size_t>(count) * row_bytes);
    MOEBIUS_RETURN_IF_ERROR(entry.file->Read(*entry.info, static_cast<uint64_t>(row) * row_bytes,
                                             absl::MakeSpan(bytes)));
    for (int64_t i = 0; i < count; ++i) {
      consume(row - block.row_begin + i, bytes.data() + static_cast<size_t>(i) * row_bytes +
                                             static_cast<size_t>(block.col_begin) * element_bytes);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightMatrix> ReadFp8Block(const StoredFp8& stored, const MatrixBlock& block) {
  Fp8Rows layout;
  layout.block_rows = stored.quantization.block_rows;
  layout.block_columns = stored.quantization.block_columns;
  layout.row_offset = block.row_begin % layout.block_rows;
  layout.column_offset = block.col_begin % layout.block_columns;
  WeightMatrix matrix = WeightMatrix::MakeFp8(block.row_end - block.row_begin,
                                              block.col_end - block.col_begin, layout);
  MOEBIUS_RETURN_IF_ERROR(ReadCodes(stored, block, matrix.codes()));
  MatrixBlock blocks;
  blocks.row_begin = block.row_begin / layout.block_rows;
  blocks.row_end = blocks.row_begin + matrix.scales().num_rows;
  blocks.col_begin = block.col_begin / layout.block_columns;
  blocks.col_end = blocks.col_begin + matrix.scales().width;
  MOEBIUS_RETURN_IF_ERROR(ReadScales(stored, blocks, matrix.scales()));
  return matrix;
}

bool IsAllZero(const Fp8Rows& rows) {
  for (int64_t row = 0; row < rows.codes.num_rows; ++row) {
    for (const uint8_t code : rows.codes.span(row)) {
      if ((code & 0x7F) != 0) return false;
    }
  }
  return rows.codes.num_rows * rows.codes.width > 0;
}

}  // namespace moebius
