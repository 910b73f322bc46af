// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/client/client.h"

namespace moebius {

/// How a command reaches a router, as typed.
struct RouterCallFlags {
  std::optional<std::string> router;  // HOST:PORT
  std::optional<std::string> tls_ca;
  std::optional<std::string> tls_cert;
  std::optional<std::string> tls_key;
  std::optional<std::string> timeout;       // of a call, as 30s
  std::optional<std::string> api_key_file;  // with the key of --api-keys; else MOEBIUS_API_KEY
};

/// INVALID_ARGUMENT for no router, or what is no address or no duration: a usage error.
absl::StatusOr<ClientOptions> ParseRouterFlags(const RouterCallFlags& flags);
/// The same of `address`, which `flag` gave.
absl::StatusOr<ClientOptions> ParseCallFlags(absl::string_view flag, const std::string& address,
                                             const RouterCallFlags& flags);

/// "90s", "1.5m", "200ms", a plain number is seconds; more than zero.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view flag, absl::string_view text);

}  // namespace moebius
