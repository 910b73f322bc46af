// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/resource_quota.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/telemetry/log_limit.h"
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

  /// What gRPC may hold for all links of a provider, received frames that are still in use
  /// included; it ends links that would pass it. At least MinGrpcMemoryBytes; 0: enough for
  /// max_connections links with full windows.
  uint64_t max_memory_bytes = 0;
  /// The quota itself, where links and other gRPC servers of a process are to share one; null: the
  /// provider makes one of max_memory_bytes.
  std::shared_ptr<const grpc::ResourceQuota> quota;

  /// How many of gRPC's callback threads of this process poll its sockets; the others rest
  /// (GrpcCallbackThreads says why). 0: all.
  int max_polling_threads = 0;

  /// True: listening beyond this host is allowed without TLS.
  bool allow_insecure = false;

  /// A connection that a listener closed at once, or that ended before a stream came over it: a
  /// sentence for the log; may be null. From the listener's thread, as often as strangers like:
  /// whoever writes it bounds it by its source.
  /// Outlives the provider.
  std::function<void(const LogSource&, const std::string&)> on_refusal;
};

/// Makes a listener keep no more connections than a process of so many descriptors can afford: it
/// has a quarter of them, two for each connection, and no address more than three quarters of the
/// connections: a whole cluster may be one host's. The lanes of two peers always have room. Raises
/// nothing. Pure.
void BoundByDescriptors(uint64_t max_descriptors, GrpcOptions* options);

/// What logs and metrics call the port of links.
inline constexpr absl::string_view kGrpcDataPort = "data";

/// Idle links stay open through balancers that forget quiet flows, and no end pings more often than
/// the other permits.
inline constexpr absl::Duration kGrpcClientPing = absl::Seconds(30);
inline constexpr absl::Duration kGrpcMinPermittedPing = absl::Seconds(10);
inline constexpr absl::Duration kGrpcPingTimeout = absl::Seconds(10);

/// What gRPC may hold for one link: what was taken and not written, the window of what has arrived,
/// and a frame that is being read.
uint64_t GrpcLinkBytes(const GrpcOptions& options);
/// The lanes of two peers: fewer could not work at all.
uint64_t MinGrpcMemoryBytes(const GrpcOptions& options);
/// `options` with a quota. INVALID_ARGUMENT when max_memory_bytes is too small.
absl::StatusOr<GrpcOptions> WithQuota(const GrpcOptions& options);

/// What a dialing end asks of gRPC: one connection per channel, no proxy, no retries, no lookups of
/// service configurations.
grpc::ChannelArguments BuildChannelArguments(const GrpcOptions& options);

/// The same for the listening end.
void ConfigureServer(const GrpcOptions& options, grpc::ServerBuilder& builder);

/// Linking gRPC's reflection switches it on for every server of the process; this switches it off
/// for one. ConfigureServer has done so.
void SwitchReflectionOff(grpc::ServerBuilder& builder);

/// The target of gRPC's resolvers: "ipv4:1.2.3.4:5", "ipv6:[fe80::1%25eth0]:5", "dns:///name:5".
std::string GrpcTarget(const Address& address);

/// The host and port in what gRPC calls a peer ("ipv6:%5B::1%5D:5" is "[::1]:5"); the text as it is
/// when it is of another kind.
std::string PeerAddress(const std::string& grpc_peer);

}  // namespace moebius
