// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "moebius/base/check.h"
#include "moebius/tensor/bf16.h"

namespace moebius {

/// A view of rows in memory that somebody else owns. [num_rows, width], row-major, the start of row
/// i at data + i * stride. stride >= width. Zero rows are ordinary (data may then be null).
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  int64_t stride = 0;

  Rows() = default;
  Rows(T* data, int64_t num_rows, int64_t width) : Rows(data, num_rows, width, width) {}
  Rows(T* data, int64_t num_rows, int64_t width, int64_t stride)
      : data(data), num_rows(num_rows), width(width), stride(stride) {}
  /// A mutable view converts to a read-only one.
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator Rows<const T>() const { return Rows<const T>(data, num_rows, width, stride); }

  T* row(int64_t index) const {
    MOEBIUS_DCHECK(index >= 0 && index < num_rows);
    return data + index * stride;
  }
  absl::Span<T> span(int64_t index) const {
    return absl::MakeSpan(row(index), static_cast<size_t>(width));
  }
  Rows Slice(int64_t begin, int64_t end) const {
    MOEBIUS_DCHECK(0 <= begin && begin <= end && end <= num_rows);
    return Rows(data + begin * stride, end - begin, width, stride);
  }
  /// Columns [begin, end) of every row.
  Rows Columns(int64_t begin, int64_t end) const {
    MOEBIUS_DCHECK(0 <= begin && begin <= end && end <= width);
    return Rows(data + begin, num_rows, end - begin, stride);
  }
};

using Bf16Rows = Rows<const Bf16>;
using MutableBf16Rows = Rows<Bf16>;
using FloatRows = Rows<const float>;
using MutableFloatRows = Rows<float>;

}  // namespace moebius
