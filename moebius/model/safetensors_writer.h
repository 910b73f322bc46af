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
  /// Whether `path` may be written: a regular file or nothing is there, in a folder that lets us.
  /// What costs much before it writes asks first; Create asks, too.
  static absl::Status CheckTarget(const std::string& path);

  /// The file gets its name in Finish, which replaces a file of that name. Until then it has none
  /// where the file system allows that, so that nothing stays behind a killed process, else a
  /// temporary one beside `path`.
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
  absl::Status Open();
  absl::Status Flush();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  bool is_named_ = false;  // temporary_path_ exists
  uint64_t declared_bytes_ = 0;
  uint64_t appended_bytes_ = 0;
  std::string buffer_;
};

}  // namespace moebius
