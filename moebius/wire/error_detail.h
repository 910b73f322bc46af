// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// The one bridge between absl::Status and what travels, for gRPC and for the data plane alike.

namespace moebius {

/// What a failure knows beside code and message. The hint lives in base/error.h.
struct ErrorDetail {
  std::optional<bool> retryable;  // unset: IsRetryable of the code
  std::optional<uint64_t> epoch_seen;
  std::optional<uint64_t> epoch_needed;
  std::vector<int32_t> missing_experts;  // ascending
  std::string host;
};

/// Attaches the detail to a failure; the last one wins. OK stays as it is.
absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);

/// The detail, complete: `retryable` is always set. For OK: nothing set.
ErrorDetail DetailOf(const absl::Status& status);

/// FAILED_PRECONDITION "NOT_HELD: …" for experts that a service does not hold. Retryable: the
/// caller refreshes its placement first.
absl::Status NotHeldError(const std::vector<int32_t>& missing_experts, uint64_t epoch_seen);
bool IsNotHeld(const absl::Status& status);

/// Most bytes that EncodeStatus makes: texts and lists are cut to fit.
inline constexpr size_t kMaxStatusBytes = 16 << 10;

/// Code, message, hint and detail as bytes (moebius.api.error.v1.ErrorDetail). OK is empty.
std::string EncodeStatus(const absl::Status& status);

/// The failure that EncodeStatus wrote. Empty bytes are OK. Bytes that nobody could have written
/// are a failure too: UNKNOWN, saying so; never OK.
absl::Status DecodeStatus(absl::string_view bytes);

}  // namespace moebius
