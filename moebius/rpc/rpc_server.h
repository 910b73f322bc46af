// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/rpc/call_meter.h"
#include "moebius/rpc/health_rpc.h"
#include "moebius/telemetry/log_limit.h"
#include "moebius/transport/address.h"
#include "moebius/transport/grpc/accept_loop.h"
#include "moebius/transport/grpc/tls.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace moebius {

/// Who is expected at a port: anybody, behind balancers that want connections to end now and then;
/// or operators.
enum class PortKind { kPublic, kAdmin };

struct RpcServerOptions {
  Address listen;
  PortKind kind = PortKind::kPublic;
  std::optional<TlsOptions> tls;                   // mutual; files that change are taken up
  bool allow_insecure = false;                     // listen beyond this host without TLS
  bool reflection = false;                         // tells callers its services and messages
  uint64_t max_message_bytes = uint64_t{4} << 20;  // received; capped at kMaxRpcMessageBytes
  int32_t max_streams_per_connection = 256;
  uint32_t max_connections = 1024;
  uint32_t max_connections_per_address = 512;
  /// What gRPC may hold for all calls, at least two messages: when it is used up connections are
  /// read more slowly, then ended.
  uint64_t max_memory_bytes = uint64_t{512} << 20;
  CallMeter* meter = nullptr;  // counts calls; outlives the server; null: nobody counts
  /// A connection that was closed at once, a sentence for the log; may be null. From the port's
  /// thread, as often as strangers like: whoever writes it bounds it by its source.
  std::function<void(const LogSource&, const std::string&)> on_refusal;
};

/// Makes a port take no more connections than a process of so many descriptors can afford: each
/// takes two, the public port has half of them, an admin port an eighth, and no address more than
/// half of a port's. Of what is left the data port has a quarter of all (GrpcOptions), the rest is
/// for probes, scrapes and files. Raises nothing. Pure.
void BoundByDescriptors(uint64_t max_descriptors, RpcServerOptions* options);

inline constexpr uint64_t kMaxRpcMessageBytes = uint64_t{256} << 20;
inline constexpr int32_t kMaxRpcMetadataBytes = 16 << 10;

/// A gRPC port with health, and reflection where it is switched on. Connections come through an
/// accept loop of our own, which bounds them; one whose handshakes take longer than 2 s is cut.
class RpcServer {
 public:
  /// Borrows `services` and `health`, which outlive the server. INVALID_ARGUMENT or
  /// PERMISSION_DENIED for an address that must not be listened on, UNAVAILABLE naming the process
  /// that holds a busy port, or what is wrong with the TLS files.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const RpcServerOptions& options, HealthRpc& health,
      const std::vector<grpc::Service*>& services);
  /// Shutdown without grace.
  ~RpcServer();

  /// With the port that was chosen.
  const Address& address() const { return loop_->address(); }
  ConnectionFigures connections() const { return loop_->figures(); }
  /// Of its connections; labelled with the kind of port.
  void WriteMetrics(MetricWriter& writer) const;

  /// Refuses new calls, waits up to `grace` for those under way and cancels the rest. Returns when
  /// all have ended. Ends the health watches.
  void Shutdown(absl::Duration grace);

 private:
  class Taker;
  RpcServer(PortKind kind, HealthRpc& health);

  const PortKind kind_;
  HealthRpc& health_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Taker> taker_;
  std::unique_ptr<AcceptLoop> loop_;
};

}  // namespace moebius
