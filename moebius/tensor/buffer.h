// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"

#include "moebius/tensor/rows.h"

namespace moebius {

/// Owned bytes, 64-byte aligned (2 MiB-aligned and advised for huge pages from 2 MiB on), zeroed
/// when made; or a view of bytes in another owner's memory. Moves, never copies. Not thread-safe.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size_bytes);
  /// A view of `bytes`, which are 64-byte aligned and outlive it; left as they are.
  static Buffer Borrow(absl::Span<uint8_t> bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() { return data_; }
  const void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool is_borrowed_ = false;
};

/// An owned array of T that grows and keeps its memory when it shrinks: the storage of row batches
/// that a step reuses. New elements are zero. Not thread-safe.
template <typename T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t size) { Resize(size); }

  /// Contents are unspecified after growth beyond the capacity (zero), else kept.
  void Resize(size_t size) {
    if (size * sizeof(T) > buffer_.size_bytes()) buffer_ = Buffer(size * sizeof(T));
    size_ = size;
  }
  void Clear() { size_ = 0; }

  T* data() { return static_cast<T*>(buffer_.data()); }
  const T* data() const { return static_cast<const T*>(buffer_.data()); }
  size_t size() const { return size_; }
  T& operator[](size_t index) { return data()[index]; }
  const T& operator[](size_t index) const { return data()[index]; }
  absl::Span<T> span() { return absl::MakeSpan(data(), size_); }
  absl::Span<const T> span() const { return absl::MakeConstSpan(data(), size_); }

 private:
  Buffer buffer_;
  size_t size_ = 0;
};

/// Rows that own their memory. `Reset` keeps the memory where it is large enough.
template <typename T>
class RowBatch {
 public:
  RowBatch() = default;
  RowBatch(int64_t num_rows, int64_t width) { Reset(num_rows, width); }
  /// Sets the shape. Contents are unspecified afterwards.
  void Reset(int64_t num_rows, int64_t width) {
    array_.Resize(static_cast<size_t>(num_rows * width));
    num_rows_ = num_rows;
    width_ = width;
  }
  int64_t num_rows() const { return num_rows_; }
  int64_t width() const { return width_; }
  Rows<T> rows() { return Rows<T>(array_.data(), num_rows_, width_); }
  Rows<const T> rows() const { return Rows<const T>(array_.data(), num_rows_, width_); }

 private:
  Array<T> array_;
  int64_t num_rows_ = 0;
  int64_t width_ = 0;
};

}  // namespace moebius
