// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Somebody who may call a router's public port, and how much.
struct ClientEntry {
  std::string name;  // in logs and metrics: [a-z0-9._-], 1 to 64 characters
  // HashKey (moebius/rpc/api_key.h) of each key that is this client's: two while one takes the
  // other's place.
  std::vector<std::string> key_hashes;
  int64_t max_in_flight = 0;      // calls of Generate, Forward and Route at a time; 0: any number
  int64_t tokens_per_minute = 0;  // of prompts and answers, and rows of Forward; 0: any number
};

inline constexpr size_t kMaxClients = 256;  // each has series of its own in /metrics
inline constexpr size_t kMaxKeysOfClient = 4;
inline constexpr size_t kMaxClientListBytes = 1 << 20;

/// {"clients": [{"name": "team-a", "keys_sha256": ["…"], "max_in_flight": 8,
///               "tokens_per_minute": 60000}, …]}
/// INVALID_ARGUMENT with `source` for another form, an unknown field, a name or a key that is there
/// twice, or more than kMaxClients.
absl::StatusOr<std::vector<ClientEntry>> ParseClientList(absl::string_view text,
                                                         absl::string_view source);
std::string FormatClientList(const std::vector<ClientEntry>& clients);

/// Errors of RegularFile::Open and ParseClientList; INVALID_ARGUMENT above kMaxClientListBytes.
absl::StatusOr<std::vector<ClientEntry>> ReadClientList(const std::string& path);

}  // namespace moebius
