// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace moebius {

/// Whether results and errors are for people or for programs (--json).
enum class OutputForm { kText, kJson };

/// The status as people read it: "error: SENTENCE" and, on a second line, "hint: SENTENCE".
/// Control characters of the message are escaped, so that a hostile file name cannot drive the
/// terminal. No trailing newline.
std::string FormatError(const absl::Status& status);

/// {"code": "INVALID_ARGUMENT", "hint": …, "message": …, "retryable": …}, one line.
std::string FormatErrorJson(const absl::Status& status);

/// Writes one of the two to stderr.
void PrintError(const absl::Status& status, OutputForm form);

/// `text` with control characters, save newline and tab, made visible; UTF-8 is kept.
std::string EscapeControls(const std::string& text);

}  // namespace moebius
