// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// SHA-256 of an API key as 64 hexadecimal digits: who keeps hashes has no key that could be
/// stolen. Pure.
std::string HashKey(absl::string_view key);

/// A new key, of 32 random bytes of the system, in letters that are safe in headers and shells:
/// "moebius_…". UNAVAILABLE where the system gives none.
absl::StatusOr<std::string> DrawKey();

inline constexpr size_t kMaxKeyBytes = 256;

}  // namespace moebius
