// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Numbers as people write them on a command line, independent of the locale. INVALID_ARGUMENT
/// quotes flag and value.
absl::StatusOr<double> ParseNumber(absl::string_view flag, absl::string_view text);
absl::StatusOr<int64_t> ParseInteger(absl::string_view flag, absl::string_view text);
absl::StatusOr<uint64_t> ParseUnsigned(absl::string_view flag, absl::string_view text);
/// A count of bytes with an optional K, M, G or KiB, MiB, GiB (all powers of 1,024).
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag, absl::string_view text);

}  // namespace moebius
