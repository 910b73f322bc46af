// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/grpc/connection_table.h"
#include "moebius/transport/grpc/grpc_options.h"
#include "moebius/transport/grpc/tls.h"
#include "moebius/transport/link.h"

namespace moebius {

struct GrpcFigures {
  ConnectionFigures connections;  // of all listeners, those that have ended included
  uint64_t num_streams = 0;       // at both ends, links that are being opened included
  uint64_t num_closing = 0;       // connections of links that were given up while they were opened
  uint64_t tls_reloads = 0;
  uint64_t tls_failed_reloads = 0;
  std::optional<absl::Time> tls_expires;
};

/// Links over gRPC: each is one bidirectional stream on a TCP connection of its own. README.md says
/// what is bounded, and what the wire looks like.
///
/// Sink calls come from gRPC's threads. Thread-safe; destruction waits for gRPC to let go of the
/// streams of links that have been destroyed.
class GrpcLinkProvider final : public LinkProvider {
 public:
  /// With `tls` every connection is mutually authenticated; without it listeners stay on this host
  /// unless options.allow_insecure. Fails as WithQuota and LoadTlsMaterial do. `clock` is a
  /// monotonic one and outlives the provider: I/O takes real time.
  static absl::StatusOr<std::unique_ptr<GrpcLinkProvider>> Make(
      const GrpcOptions& options, std::optional<TlsOptions> tls,
      const Clock& clock = Clock::Monotonic());
  ~GrpcLinkProvider() override;

  absl::string_view name() const override { return "grpc"; }
  absl::StatusOr<std::unique_ptr<LinkListener>> Listen(const Address& address,
                                                       LinkAcceptor& acceptor) override;
  absl::StatusOr<std::unique_ptr<Link>> Dial(const Address& address, Lane lane) override;

  /// One line for people: what listeners let in, e.g. "mutual TLS", "this host only, without TLS".
  absl::string_view exposure() const;
  GrpcFigures figures() const;
  /// Connections, by the port "data", and those that never carried a link; with TLS also the
  /// certificate's end and reloads.
  void WriteMetrics(MetricWriter& writer) const override;

 private:
  class Core;
  explicit GrpcLinkProvider(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  const std::shared_ptr<Core> core_;
};

}  // namespace moebius
