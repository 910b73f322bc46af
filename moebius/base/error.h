// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Adds a sentence that tells the reader what to do ("pass --dtype=bf16"). A failure keeps its code
/// and message; an OK status is returned unchanged. The last hint wins.
absl::Status WithHint(absl::Status status, absl::string_view hint);

/// The hint, or an empty string.
std::string HintOf(const absl::Status& status);

/// Puts `context` and ": " before the message; code and payloads are kept.
absl::Status WithContext(const absl::Status& status, absl::string_view context);

/// Marks a failure as the fault of a value that the caller chose (a flag), or of this host, where
/// its code alone would put it down to the data. OK is returned unchanged.
absl::Status AsUsageError(absl::Status status);
bool IsUsageError(const absl::Status& status);
absl::Status AsHostError(absl::Status status);
bool IsHostError(const absl::Status& status);

/// True where the same call may succeed later without a change by the caller.
bool IsRetryable(const absl::Status& status);

/// The status as people read it: "error: SENTENCE" and, on a second line, "hint: SENTENCE".
/// Control characters of the message are escaped, so that a hostile file name cannot drive the
/// terminal. No trailing newline.
std::string FormatError(const absl::Status& status);

/// `text` with control characters, save newline and tab, and bytes that are no UTF-8 made
/// visible as \xNN.
std::string EscapeControls(const std::string& text);

}  // namespace moebius
