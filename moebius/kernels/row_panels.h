// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "moebius/kernels/kernels.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"

/// How the operations of this room cut a product into kernel calls; not for other rooms.
namespace moebius {

/// A product of rows with some panels of a matrix and what becomes of it. Columns of `out` start at
/// the first output of panel_begin.
struct PanelProduct {
  const PackedMatrix* matrix = nullptr;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  Epilogue epilogue = Epilogue::kFloat;
  const float* bias = nullptr;  // of output 0 of the matrix, or null
  void* out = nullptr;          // row 0, output 0 of the matrix
  int64_t out_stride = 0;       // elements
};

/// Rows as the kernel calls of one tier read them. Not thread-safe; allocates only while it grows.
class PreparedRows {
 public:
  /// `rows`: at most kMaxKernelRows pointers to matrix.depth() values each. For products with any
  /// panels of this matrix, or of another that has the same depth and groups of it.
  void Prepare(const Kernels& kernels, absl::Span<const Bf16* const> rows,
               const PackedMatrix& matrix);

  int64_t num_rows() const { return num_rows_; }
  const void* data() const { return memory_.data(); }

 private:
  Array<std::byte> memory_;
  int64_t num_rows_ = 0;
};

/// Runs `product` for rows that were prepared for its matrix, in one kernel call.
void RunPanels(const Kernels& kernels, const PreparedRows& rows, const PanelProduct& product);
/// The same for the rows at `rows`, prepared in memory of this thread.
void RunPanels(const Kernels& kernels, absl::Span<const Bf16* const> rows,
               const PanelProduct& product);

/// Memory of this thread for prepared rows, 64-byte aligned; contents are unspecified. Valid until
/// the thread's next call.
void* PreparedRowScratch(size_t size_bytes);

/// Rows per kernel call so that `num_rows` rows make equal calls without nearly empty register
/// tiles; num_rows > 0.
int64_t RowsPerCall(const Kernels& kernels, int64_t num_rows);

}  // namespace moebius
