// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"
#include "moebius/transport/address.h"

namespace moebius {

struct ListenSockets {
  std::vector<OwnedFd> sockets;  // one for each address of the name
  Address address;               // with the port that was chosen
};

/// Bound, listening, non-blocking TCP sockets; nobody else can share the port. [::] takes IPv4 too.
/// UNAVAILABLE naming the process that holds a busy port; INVALID_ARGUMENT for a name without
/// address, or an address that is not of this host.
absl::StatusOr<ListenSockets> OpenListenSockets(const Address& address);

/// "10.0.0.7" and "10.0.0.7:4120" of a socket's remote end, IPv6 without its zone; an IPv4 address
/// in IPv6's clothes is shown as IPv4.
struct RemoteAddress {
  std::string host;
  std::string host_and_port;
};
RemoteAddress RemoteAddressOf(const sockaddr_storage& address);

}  // namespace moebius
