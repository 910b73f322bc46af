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

/// True where the same call may succeed later without a change by the caller.
bool IsRetryable(const absl::Status& status);

}  // namespace moebius
