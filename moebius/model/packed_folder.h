// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"

namespace moebius {

inline constexpr char kPackedFileSuffix[] = ".packed";

/// A file of a packed folder that is being written: under a name of its own, locked while its
/// writer lives. Removed with its owner unless it was published. The folder outlives it.
class NewPackedFile {
 public:
  NewPackedFile(NewPackedFile&& other) noexcept;
  NewPackedFile& operator=(NewPackedFile&&) = delete;
  ~NewPackedFile();

  int fd() const { return fd_.fd(); }
  /// Puts it in place of what is under its final name, and the name on the disk.
  absl::Status Publish();

 private:
  friend class PackedFolder;
  NewPackedFile(int folder, std::string temporary, std::string name, OwnedFd fd);

  int folder_ = -1;
  std::string temporary_;  // empty: published, or moved from
  std::string name_;
  OwnedFd fd_;
};

/// The folder of a packed cache: its files end in ".packed", those that are being written have
/// ".packed.new-…" after their name. Others are never looked at. Nothing in it is reached through a
/// link; the folder's own path may be one.
class PackedFolder {
 public:
  /// Opens it; made (mode 0700) where its parent is there. The error names path and reason.
  static absl::StatusOr<PackedFolder> Open(const std::string& path);

  int fd() const { return fd_.fd(); }

  /// Checks that a file `name` of `bytes` may come: that no other process writes it now, that it
  /// keeps to `limit_bytes` of all packed files (0: none) once those that were of use longest ago
  /// are removed, which it does, and that the file system has the room. Removes what dead writers
  /// left. RESOURCE_EXHAUSTED, ABORTED (another writes it).
  absl::Status MakeRoom(const std::string& name, int64_t bytes, int64_t limit_bytes) const;
  /// A new, empty file (mode 0600) to become `name`.
  absl::StatusOr<NewPackedFile> Create(const std::string& name) const;

 private:
  PackedFolder(std::string path, OwnedFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  OwnedFd fd_;
};

}  // namespace moebius
