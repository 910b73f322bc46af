// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/channel_arguments.h>

#include <cstdint>
#include <memory>

#include "absl/time/time.h"

#include "moebius/transport/address.h"

namespace grpc {
class ServerBuilder;
}

namespace moebius {

/// What the gRPC transport may use and how long it waits. One place for both ends of a connection.
struct GrpcOptions {
  /// Of one frame, at both ends: FrameLimits::max_payload_bytes of the configuration.
  uint64_t max_payload_bytes = uint64_t{1} << 20;
  /// What one link holds that has been taken and not yet been written; at least one frame.
  uint64_t max_outstanding_bytes = uint64_t{4} << 20;

  uint32_t max_connections = 1024;             // of one listener
  uint32_t max_connections_per_address = 256;  // of one listener and remote address
  /// A connection without a stream for this long is cut: the time for the handshakes.
  absl::Duration silence_limit = absl::Seconds(2);
  /// How long opening a connection may take.
  absl::Duration connect_timeout = absl::Seconds(2);

  /// True: listening beyond this host is allowed without TLS.
  bool allow_insecure = false;
};

/// Idle links stay open through balancers that forget quiet flows, and no end pings more often than
/// the other permits.
inline constexpr absl::Duration kGrpcClientPing = absl::Seconds(30);
inline constexpr absl::Duration kGrpcMinPermittedPing = absl::Seconds(10);
inline constexpr absl::Duration kGrpcPingTimeout = absl::Seconds(10);

/// What a dialing end asks of gRPC: one connection per channel, no proxy, no retries, no lookups of
/// service configurations.
grpc::ChannelArguments BuildChannelArguments(const GrpcOptions& options);

/// The same for the listening end.
void ConfigureServer(const GrpcOptions& options, grpc::ServerBuilder& builder);

/// The target of gRPC's resolvers: "ipv4:1.2.3.4:5", "ipv6:[fe80::1%25eth0]:5", "dns:///name:5".
std::string GrpcTarget(const Address& address);

/// The host and port in what gRPC calls a peer ("ipv6:%5B::1%5D:5" is "[::1]:5"); the text as it is
/// when it is of another kind.
std::string PeerAddress(const std::string& grpc_peer);

}  // namespace moebius
