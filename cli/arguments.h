// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/base/parse_number.h"

namespace moebius {

/// The value of --prompt-ids: a comma list where it holds digits and commas only, else a file with
/// a JSON array of integers or with numbers separated by white space. Ids are not judged here, the
/// lead knows the vocabulary. "" is an empty list. "-" reads standard input.
absl::StatusOr<std::vector<int64_t>> ReadPromptIds(const std::string& value);

/// A file byte for byte, at most `max_bytes`; "-" reads standard input.
absl::StatusOr<std::string> ReadInput(const std::string& path, int64_t max_bytes);

/// `text` as one word of a POSIX shell; quoted only where needed.
std::string ShellQuote(const std::string& text);

}  // namespace moebius
