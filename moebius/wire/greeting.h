// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moebius {

/// What a process does in a cluster. The values are part of the wire format; never renumber.
enum class Role : uint8_t { kRouter = 1, kExpert = 2, kAttention = 3 };

absl::string_view RoleName(Role role);  // "router", "expert", "attention"

/// What a process says of itself in its hello: TransportOptions::greeting, PeerInfo::greeting.
struct Greeting {
  Role role = Role::kRouter;
  std::string config_hash;    // 16 hexadecimal digits; must be equal on both sides
  std::string model_hash;     // the same, part of the config hash: to say what differs
  std::string numeric_class;  // NumericsConfig::numeric_class; must be equal
  std::string tier;           // for people: every tier has the same bits
  std::string version;        // of the program, for people
  int32_t wanted_index = -1;  // the slot that it would like; -1: any
  std::string data_address;   // where it can be dialed; empty: nowhere
  std::string admin_address;
  std::string http_address;
  uint64_t pid = 0;

  friend bool operator==(const Greeting&, const Greeting&) = default;
};

inline constexpr size_t kMaxGreetingText = 64;      // hashes, class, tier, version
inline constexpr size_t kMaxGreetingAddress = 264;  // a host name of 253, a port, brackets
inline constexpr int32_t kMaxSlotIndex = 1 << 16;   // of a wanted or assigned slot, exclusive

/// At most kMaxGreetingBytes of the transport's hello. Longer texts are cut.
std::string EncodeGreeting(const Greeting& greeting);

/// INVALID_ARGUMENT for bytes that EncodeGreeting could not have made.
absl::StatusOr<Greeting> ParseGreeting(absl::string_view bytes);

/// What one side says of the settings that differ.
struct ConfigWords {
  std::string does;   // a sentence's end: "sums attention per-degree (zigzag)"
  std::string flags;  // that make a process do so: "--attention-sum per-degree …"
};

/// A configuration that another process may have, and in what it differs from the own one.
struct NearConfig {
  std::string config_hash;  // 16 hexadecimal digits
  ConfigWords own;
  ConfigWords other;
};

/// Whether two processes may work together. FAILED_PRECONDITION showing both values where config
/// hash or numeric class differ: their answers would not have the same bits. Names the settings
/// that differ where the other's hash is one of `near`.
absl::Status CheckGreeting(const Greeting& own, const Greeting& other,
                           absl::Span<const NearConfig> near = {});

}  // namespace moebius
