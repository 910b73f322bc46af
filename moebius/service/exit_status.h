// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

#include "moebius/base/exit_code.h"

namespace moebius {

/// Notes how a process that ends with this failure should exit; OK stays as it is. The first wins:
/// who knows most says it.
absl::Status WithExitCode(absl::Status status, ExitCode code);

/// What was noted; else kExitOk for OK and kExitHost for a failure.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace moebius
