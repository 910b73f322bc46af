// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/base/owned_fd.h"
#include "moebius/transport/address.h"
#include "moebius/transport/grpc/connection_table.h"
#include "moebius/transport/grpc/listen_socket.h"

namespace moebius {

/// Who gets the connections of an AcceptLoop. Calls come from its thread, one at a time.
class ConnectionTaker {
 public:
  virtual ~ConnectionTaker() = default;
  /// A connection is about to be taken; returns a number under which the table counts it.
  virtual uint64_t PrepareConnection() { return 0; }
  virtual void TakeConnection(OwnedFd socket) = 0;
  /// A connection of `host` was closed at once, as the table has no room for it.
  virtual void OnConnectionRefused(const std::string& /*host*/) {}
  /// A connection of `host` has ended and never had a stream; not while the loop ends.
  virtual void OnConnectionUnused(const std::string& /*host*/) {}
  /// After each turn.
  virtual void OnTurn() {}
  /// The loop accepts no more: may it end?
  virtual bool IsOver() const { return true; }
  /// The last call.
  virtual void OnEnd() {}
};

/// Of each connection: gRPC's of the socket, and the loop's own.
inline constexpr uint64_t kDescriptorsPerConnection = 2;

struct AcceptLoopOptions {
  uint32_t max_connections = 1024;
  uint32_t max_connections_per_address = 256;
  /// A connection without a stream (ConnectionTable::OnStreamBegin) for this long is cut.
  absl::Duration silence_limit = absl::InfiniteDuration();
};

/// A sentence for the log of a connection of `host` that found no room at the port of this name.
std::string DescribeRefusal(absl::string_view host, absl::string_view port,
                            const AcceptLoopOptions& options);

/// Accepts TCP connections for somebody who has no limits of his own: keeps a bounded number, in
/// all and from one address, and cuts silent ones. A port that is busy is an error at once.
///
/// Thread-safe, with one thread; Finish and the destructor, which calls it, for the owner only.
class AcceptLoop {
 public:
  /// `clock` is a monotonic one; it and `taker` outlive the loop. OpenListenSockets has the errors.
  /// Nothing is accepted before Run.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Listen(const AcceptLoopOptions& options,
                                                            const Address& address,
                                                            const Clock& clock,
                                                            ConnectionTaker& taker);
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

  void Run();
  /// The port is free when this returns; connections that have no stream are cut where silence has
  /// a limit.
  void StopAccepting() MOEBIUS_EXCLUDES(state_mutex_);
  /// StopAccepting, and waits for the taker's IsOver.
  void Finish() MOEBIUS_EXCLUDES(state_mutex_);
  /// Makes the loop take a turn.
  void Wake();
  bool is_over() const { return is_over_.load(); }

  const Address& address() const { return sockets_.address; }
  ConnectionTable& table() { return table_; }
  ConnectionFigures figures() const { return table_.figures(); }

 private:
  AcceptLoop(const AcceptLoopOptions& options, ListenSockets sockets, const Clock& clock,
             ConnectionTaker& taker);
  absl::Status Open();
  void Loop();
  int WaitMilliseconds() const;
  void Accept(int listener);
  void Adopt(OwnedFd socket, const RemoteAddress& remote);
  bool Watch(int fd, uint64_t id, uint32_t events);

  const AcceptLoopOptions options_;
  const Clock& clock_;
  ConnectionTaker& taker_;
  ListenSockets sockets_;  // of the loop, but for the address
  OwnedFd epoll_;
  OwnedFd wake_;
  ConnectionTable table_;
  absl::Duration accept_again_;  // after the process ran out of descriptors

  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_over_{false};
  Mutex state_mutex_;
  CondVar state_changed_;
  bool is_listening_ MOEBIUS_GUARDED_BY(state_mutex_) = true;
  std::thread thread_;
};

}  // namespace moebius
