// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Where a process listens or is reached: a name, an IPv4 or an IPv6 address (with a zone:
/// "fe80::1%eth0"), without brackets, and a port.
struct Address {
  std::string host;
  uint16_t port = 0;

  friend bool operator==(const Address&, const Address&) = default;
};

/// "name:1", "10.0.0.1:1", "[::1]:1", "[fe80::1%eth0]:1". Port 0 means: choose a free one.
/// INVALID_ARGUMENT with a hint for anything else; an IPv6 address without brackets is told to
/// write [address]:port.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

/// The text that ParseAddress reads; IPv6 in brackets.
std::string FormatAddress(const Address& address);

bool IsIpv6(const Address& address);
/// 0.0.0.0 or ::, in any spelling: a place to listen, never one to connect to.
bool IsUnspecified(const Address& address);
/// 127.0.0.0/8, ::1 or "localhost".
bool IsLoopback(const Address& address);

/// What makes it right to listen beyond this host.
enum class Exposure { kLoopbackOnly, kTls, kInsecureAllowed };
/// "this host only, without TLS": who can get in, for people.
absl::string_view DescribeExposure(Exposure exposure);

/// PERMISSION_DENIED with a hint when `listen` is reachable from outside without TLS and without
/// --insecure.
absl::Status ValidateListenAddress(const Address& listen, Exposure exposure);

/// The address that others are told: `advertise` if it has a host (its port, when 0, becomes that
/// of `listen`), else `listen`. INVALID_ARGUMENT with a hint when that is an unspecified address or
/// port 0: others would connect to themselves.
absl::StatusOr<Address> AdvertisedAddress(const Address& listen, const Address& advertise);

}  // namespace moebius
