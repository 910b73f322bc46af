// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/base/check.h"
#include "moebius/model/file.h"
#include "moebius/tensor/dtype.h"

namespace moebius {

/// One tensor of a safetensors file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kUnspecified;  // kUnspecified: a type of the format that nothing here reads
  std::string dtype_name;             // as in the file
  std::vector<int64_t> shape;         // [] is one element
  uint64_t file_offset = 0;           // of the first byte, from the start of the file
  uint64_t size_bytes = 0;

  int64_t NumElements() const;
  /// "[320, 64]".
  std::string ShapeText() const;
};

/// Limits on what a header may claim.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensorsPerFile = 1u << 17;
inline constexpr int kMaxTensorRank = 8;

/// Parses the JSON header of a safetensors file (the bytes after the 8-byte length) against the
/// size of the data that follows it. Tensors are returned by ascending name; file_offset counts
/// from `data_begin`. Refuses, INVALID_ARGUMENT with `source` and the tensor's name: anything that
/// Json refuses, duplicate names or keys, unknown types or keys, shapes whose product wraps, a
/// shape that disagrees with the offsets, offsets that are no unsigned integers, that run
/// backwards, overlap, leave holes or do not end with the data (DATA_LOSS when the data is too
/// short).
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(absl::string_view header,
                                                               uint64_t data_begin,
                                                               uint64_t file_size,
                                                               absl::string_view source);

/// A safetensors file, open for reading by position: never mapped, so that a file cut while it is
/// in use fails a read and kills nobody. Thread-safe after Open.
/// Format: 8 bytes little-endian header length, JSON header, data without holes.
class SafetensorsFile {
 public:
  /// Reads and validates the header; no tensor data. NOT_FOUND explains a dangling link;
  /// DATA_LOSS for a short file names it with the expected and the actual bytes.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  /// The last part of the path, for messages.
  const std::string& base_name() const { return base_name_; }
  uint64_t size_bytes() const { return file_.size_bytes(); }
  /// Of the file that is open, as of now.
  absl::StatusOr<FileIdentity> Identity() const { return file_.Identity(); }
  /// Ascending by name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Null when absent.
  const TensorInfo* Find(absl::string_view name) const;

  /// Reads `out.size()` bytes from `offset` inside `tensor`'s data. DATA_LOSS with the file's name
  /// when the file has become shorter.
  absl::Status Read(const TensorInfo& tensor, uint64_t offset, absl::Span<uint8_t> out) const;

  /// The whole tensor as T; CHECKs sizeof(T) against the type, so test `dtype` first.
  template <typename T>
  absl::StatusOr<std::vector<T>> ReadAll(const TensorInfo& tensor) const {
    MOEBIUS_CHECK_EQ(sizeof(T), DTypeBytes(tensor.dtype));
    std::vector<T> out(static_cast<size_t>(tensor.NumElements()));
    absl::Status status = Read(
        tensor, 0, absl::MakeSpan(reinterpret_cast<uint8_t*>(out.data()), out.size() * sizeof(T)));
    if (!status.ok()) return status;
    return out;
  }

 private:
  SafetensorsFile() = default;
  std::string path_;
  std::string base_name_;
  RegularFile file_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace moebius
