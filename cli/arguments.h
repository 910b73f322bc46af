// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Numbers of a command line, independent of the locale. INVALID_ARGUMENT quotes flag and value.
absl::StatusOr<double> ParseNumber(absl::string_view flag, absl::string_view text);
absl::StatusOr<int64_t> ParseInteger(absl::string_view flag, absl::string_view text);
absl::StatusOr<uint64_t> ParseUnsigned(absl::string_view flag, absl::string_view text);
/// A count of bytes with an optional K, M, G or KiB, MiB, GiB (all powers of 1,024).
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag, absl::string_view text);

/// The value of --prompt-ids: a comma list where it holds digits and commas only, else a file with
/// a JSON array of integers or with numbers separated by white space. Ids are not judged here, the
/// lead knows the vocabulary. "" is an empty list. "-" reads standard input.
absl::StatusOr<std::vector<int64_t>> ReadPromptIds(const std::string& value);

/// A file byte for byte, at most `max_bytes`; "-" reads standard input.
absl::StatusOr<std::string> ReadInput(const std::string& path, int64_t max_bytes);

/// `text` as one word of a POSIX shell; quoted only where needed.
std::string ShellQuote(const std::string& text);

}  // namespace moebius
