// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/model/safetensors.h"

namespace moebius {

/// The header of a file that holds `tensors` in this order: 8 bytes of length, then JSON padded
/// with spaces to a multiple of 8. Name, dtype and shape count. INVALID_ARGUMENT for duplicate
/// names and unspecified types. Pure.
absl::StatusOr<std::string> EncodeSafetensorsHeader(const std::vector<TensorInfo>& tensors);

/// Writes a safetensors file in one pass: declare every tensor in the order of their data, then
/// append the data of each, in pieces of any size. Not thread-safe.
class SafetensorsWriter {
 public:
  /// The file is written under a temporary name beside `path` and renamed by Finish; the temporary
  /// file is removed when Finish is not reached.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<TensorInfo>& tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  absl::Status Append(const void* data, size_t size_bytes);
  /// FAILED_PRECONDITION when the appended bytes are not what was declared.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;
  absl::Status Flush();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  uint64_t declared_bytes_ = 0;
  uint64_t appended_bytes_ = 0;
  std::string buffer_;
};

}  // namespace moebius
