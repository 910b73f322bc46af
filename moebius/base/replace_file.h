// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/base/owned_fd.h"

namespace moebius {

/// Makes `text` the content of the file `path`: written under a name of its own beside it
/// ("PATH.new"), on the disk, then in its place. Whoever reads finds the old file or the new one,
/// whole. A new file has `mode`; one that is there keeps its mode and owner, and a link stays one:
/// what it points to is replaced. One writer at a time. The error names the path, its code is that
/// of errno, and what was there is untouched.
absl::Status ReplaceFile(const std::string& path, absl::string_view text, mode_t mode);

/// For who reads a file, changes it and replaces it: nobody else who asks has such a lock until it
/// goes, for any file of the same folder. Waits; leaves nothing behind.
absl::StatusOr<OwnedFd> LockForReplacing(const std::string& path);

}  // namespace moebius
