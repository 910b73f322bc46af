// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

#include "moebius/base/exit_code.h"

namespace moebius {

/// Whether results and errors are for people or for programs (--json).
enum class OutputForm { kText, kJson };

/// {"code": "INVALID_ARGUMENT", "hint": …, "message": …, "retryable": …}, one line.
std::string FormatErrorJson(const absl::Status& status);

/// Writes one of the two to stderr.
void PrintError(const absl::Status& status, OutputForm form);

/// The exit code for a model that cannot be opened: usage for a flag's value, host for what this
/// host cannot give, else model.
ExitCode ExitCodeOfOpen(const absl::Status& status);

}  // namespace moebius
