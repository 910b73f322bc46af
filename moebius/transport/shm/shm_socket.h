// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"
#include "moebius/transport/address.h"

// The Unix sockets behind shared memory links: who is where, who is at the other end, and the two
// messages that ever cross them. A port is the abstract name "moebius.shm.PORT": it belongs to the
// network namespace like a TCP port, needs no directory, and vanishes with its process.

namespace moebius {

struct ShmListenSocket {
  OwnedFd socket;
  Address address;  // with the port that was chosen
};

/// UNAVAILABLE "address already in use" naming the process that has the port.
absl::StatusOr<ShmListenSocket> OpenShmListenSocket(const Address& address);

/// The process at the other end, from the kernel: who connected, or who listened.
struct ShmPeer {
  pid_t pid = 0;  // 0: in another process namespace
  uid_t uid = 0;
};
/// PERMISSION_DENIED when it runs as another user.
absl::StatusOr<ShmPeer> CheckShmPeer(int socket);

/// A connection whose other end runs as the same user. Nothing: the listener's queue is full, try
/// again. UNAVAILABLE when nobody listens; PERMISSION_DENIED when it is another user who does.
absl::StatusOr<std::optional<OwnedFd>> ConnectShmSocket(const Address& address);

/// What a dialing end hands over: the memory of the link (SharedSegment) and the two pipes by which
/// the ends wake one another (Bell).
struct ShmHandover {
  uint64_t ring_bytes = 0;
  OwnedFd memory;
  OwnedFd dialer_bell;
  OwnedFd listener_bell;
};
/// UNAVAILABLE when the connection has ended.
absl::Status SendHandover(int socket, const ShmHandover& handover);
/// Nothing: it has not come yet. UNAVAILABLE when the connection has ended, INVALID_ARGUMENT for
/// anything but a handover whose rings are whole pages, [1, max_ring_bytes]. What the descriptors
/// are is not looked at.
absl::StatusOr<std::optional<ShmHandover>> ReceiveHandover(int socket, uint64_t max_ring_bytes);

/// Why this end gives up, to be sent before the socket is closed. Never waits.
void SendRefusal(int socket, const absl::Status& reason);
/// What a connection in use has to say. Nothing: nothing yet. OK: it has ended without a word. The
/// refusal where it is one; INVALID_ARGUMENT for anything else.
std::optional<absl::Status> ReceiveEnd(int socket);

}  // namespace moebius
