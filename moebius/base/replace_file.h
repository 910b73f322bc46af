// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Makes `text` the content of the file `path`: written under a name of its own beside it
/// ("PATH.new"), on the disk, then in its place. Whoever reads finds the old file or the new one,
/// whole. One writer at a time. The error names the path; its code is that of errno.
absl::Status ReplaceFile(const std::string& path, absl::string_view text, mode_t mode);

}  // namespace moebius
