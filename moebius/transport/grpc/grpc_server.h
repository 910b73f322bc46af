// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/status/statusor.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/grpc/accept_loop.h"
#include "moebius/transport/grpc/grpc_options.h"
#include "moebius/transport/grpc/grpc_stream.h"
#include "moebius/transport/grpc/tls.h"
#include "moebius/transport/link.h"

namespace moebius {

/// The listening end: an accept loop of its own that caps connections and cuts silent ones, and
/// gRPC servers behind it that never see a port. When the certificate has changed new connections
/// go to a new gRPC server, and the former one ends with its last stream.
///
/// Lives on after StopAccepting until its last stream is over. Thread-safe; never destroyed from
/// a callback.
class GrpcServer final : private ConnectionTaker {
 public:
  /// `tls` may be null; with `clock` and (until StopAccepting) `acceptor` it outlives the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcOptions& options,
                                                           const Address& address, TlsFiles* tls,
                                                           const Clock& clock,
                                                           LinkAcceptor& acceptor,
                                                           std::shared_ptr<StreamCount> count);
  /// Waits for the last stream.
  ~GrpcServer() override;
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  /// The port is free and OnLink has returned for good when this returns.
  void StopAccepting() MOEBIUS_EXCLUDES(acceptor_mutex_);
  bool is_over() const { return loop_->is_over(); }
  const Address& address() const { return loop_->address(); }
  ConnectionFigures figures() const { return loop_->figures(); }

 private:
  class Service;
  class Stream;
  struct Generation;

  GrpcServer(const GrpcOptions& options, TlsFiles* tls, const Clock& clock, LinkAcceptor& acceptor,
             std::shared_ptr<StreamCount> count);
  absl::Status AddGeneration(const std::shared_ptr<const TlsMaterial>& material);
  void OnStreamOver(Generation& generation, uint64_t connection);

  uint64_t PrepareConnection() override;
  void TakeConnection(OwnedFd socket) override;
  void OnConnectionRefused(const std::string& host) override;
  void OnConnectionUnused(const std::string& host) override;
  void OnTurn() override;
  bool IsOver() const override;
  void OnEnd() override;

  const GrpcOptions options_;
  TlsFiles* const tls_;
  const Clock& clock_;
  const std::shared_ptr<StreamCount> count_;
  std::list<std::unique_ptr<Generation>> generations_;  // of the loop; the last is current
  uint64_t next_generation_ = 1;

  Mutex acceptor_mutex_;  // held during OnLink
  LinkAcceptor* acceptor_ MOEBIUS_GUARDED_BY(acceptor_mutex_);

  std::atomic<uint64_t> num_streams_{0};
  std::unique_ptr<AcceptLoop> loop_;
};

}  // namespace moebius
