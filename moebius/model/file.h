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

/// What a file system says of a file's content without reading it. A file that was written to, or
/// put in another's place, differs in one of them; times are of the file system's clock.
struct FileIdentity {
  uint64_t size_bytes = 0;
  uint64_t inode = 0;
  int64_t modified_ns = 0;  // of the content, which tools may set
  int64_t changed_ns = 0;   // of the content or the inode, which nobody can set
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

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
  /// As of now. DATA_LOSS where the file system does not say.
  absl::StatusOr<FileIdentity> Identity() const;
  /// Fills `out` from `offset`. DATA_LOSS when the file has become shorter.
  absl::Status Read(uint64_t offset, absl::Span<uint8_t> out) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
};

}  // namespace moebius
