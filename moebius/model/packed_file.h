// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/base/owned_fd.h"

namespace moebius {

/// Bytes that one hash of a packed file covers: what a thread reads and checks while it is in its
/// cache.
inline constexpr uint64_t kPackedSectionBytes = 1u << 20;
inline constexpr uint64_t kMaxPackedIdentityBytes = 4u << 20;

/// Told on the caller's thread of data that was read or written so far.
using PackedProgress = std::function<void(int64_t done_bytes)>;

/// A file of packed weights, open for reading: a head, and data in sections with a hash each. All
/// numbers little-endian; every byte of the file is under a hash (XXH3-64).
///
///     0   8  "MOEBPACK"
///     8   4  format, 1
///    12   4  bytes of the identity
///    16   8  bytes of the data
///    24   8  where the data begins, a multiple of 4096
///    32   8  bytes of a section, kPackedSectionBytes
///    40   8  hash of bytes [64, where the data begins)
///    48   8  0
///    56   8  hash of bytes [0, 56)
///    64      identity, text; a hash of 8 bytes for each section; zeros up to the data
///
/// Read with pread, never mapped: a file that is cut while it is in use fails a read and kills
/// nobody, and what was checked is what is used. Thread-safe.
class PackedFile {
 public:
  /// Opens `name` in the folder `directory` and checks its head. NOT_FOUND; DATA_LOSS for bytes
  /// that are not as they were written; PERMISSION_DENIED for a link, for what is no regular file,
  /// and for a file of another user or that others may write. Messages do not name the file.
  static absl::StatusOr<PackedFile> Open(int directory, const std::string& name);

  const std::string& identity() const { return identity_; }
  int64_t data_bytes() const { return data_bytes_; }
  int64_t file_bytes() const { return data_begin_ + data_bytes_; }

  /// Fills `out`, which has data_bytes(), on `num_threads` threads. DATA_LOSS names the section
  /// whose bytes are not as they were written; `out` then holds anything.
  absl::Status ReadData(absl::Span<uint8_t> out, int num_threads,
                        const PackedProgress& on_progress) const;
  /// Sets its modification time to now: it was of use.
  void Touch() const;

 private:
  PackedFile() = default;
  absl::Status ReadHead(uint64_t file_bytes);

  OwnedFd fd_;
  std::string identity_;
  std::vector<uint64_t> hashes_;  // by section
  int64_t data_begin_ = 0;
  int64_t data_bytes_ = 0;
};

/// Bytes of the file that WritePackedFile makes.
int64_t PackedFileBytes(absl::string_view identity, int64_t data_bytes);

/// Writes a whole packed file to `fd`, which is empty and open for writing, and waits until it is
/// on the disk. RESOURCE_EXHAUSTED where the file system or a limit of this process has no room;
/// the file is then incomplete.
absl::Status WritePackedFile(int fd, absl::string_view identity, absl::Span<const uint8_t> data,
                             int num_threads);

}  // namespace moebius
