// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/model/model_config.h"
#include "moebius/model/tensor_directory.h"
#include "moebius/tensor/weight_rows.h"

namespace moebius {

/// A rectangle of a matrix: rows and columns, half-open.
struct MatrixBlock {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
};

/// Reads a rectangle of a stored matrix of `matrix_width` columns in pieces of about a MiB and
/// hands on its rows, ascending: `consume(row, stored)`, row from 0, `stored` the block's columns
/// of it.
absl::Status ReadMatrixBlock(const TensorDirectory::Entry& entry, int64_t matrix_width,
                             const MatrixBlock& block,
                             absl::FunctionRef<void(int64_t row, const uint8_t* stored)> consume);

/// A matrix in F8_E4M3 and its scales in F32, as they are in the files.
struct StoredFp8 {
  TensorDirectory::Entry codes;   // [rows, columns]
  TensorDirectory::Entry scales;  // ScaleShape of it
  int64_t width = 0;              // columns
  QuantizationConfig quantization;
};

/// Reads a rectangle of the codes and the scales of the blocks that it meets. DATA_LOSS, with the
/// tensor and the place, for a code that is no number (0x7F, 0xFF), and for a scale that is not
/// finite, not positive, or below the smallest normal fp32.
absl::StatusOr<WeightMatrix> ReadFp8Block(const StoredFp8& stored, const MatrixBlock& block);

/// True where every code is a zero of either sign, and there is one.
bool IsAllZero(const Fp8Rows& rows);

}  // namespace moebius
