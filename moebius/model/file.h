// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moebius {

/// The part of a path after its last slash.
std::string BaseName(absl::string_view path);

/// A name from a file, escaped and cut to 200 characters for a message.
std::string PrintableName(absl::string_view name);

/// A regular file, open for reads by position. Movable; reads are thread-safe.
class RegularFile {
 public:
  /// NOT_FOUND for a missing file, and for a dangling link with the link's target;
  /// INVALID_ARGUMENT for what is no regular file; PERMISSION_DENIED.
  static absl::StatusOr<RegularFile> Open(const std::string& path);
  RegularFile() = default;
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;

  /// When it was opened.
  uint64_t size_bytes() const { return size_bytes_; }
  /// Fills `out` from `offset`. DATA_LOSS when the file has become shorter.
  absl::Status Read(uint64_t offset, absl::Span<uint8_t> out) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
};

}  // namespace moebius
