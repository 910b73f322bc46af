// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/transport/grpc/listen_socket.h"

namespace moebius {

struct ConnectionFigures {
  uint64_t accepted = 0;             // since the start, refused ones not included
  uint64_t refused = 0;              // the table was full
  uint64_t refused_for_address = 0;  // their address had its share
  uint64_t silent_cut = 0;           // no stream within the silence limit
  uint64_t unused = 0;               // ended, cut or not, and never had a stream
  uint64_t open = 0;
};

/// The connections of a listener, whose sockets belong to gRPC: the table has a second descriptor
/// of each, which tells when gRPC has shut the socket down and is the way to cut one.
///
/// Thread-safe.
class ConnectionTable {
 public:
  ConnectionTable(uint32_t max_connections, uint32_t max_per_address)
      : max_connections_(max_connections), max_per_address_(max_per_address) {}

  /// Whether one more connection from `host` may be kept; counts the refusal.
  bool HasRoomFor(const std::string& host) MOEBIUS_EXCLUDES(mutex_);
  /// Takes a duplicate of the connection's descriptor. Returns its id.
  uint64_t Add(const RemoteAddress& remote, OwnedFd duplicate, uint64_t generation,
               absl::Duration now) MOEBIUS_EXCLUDES(mutex_);
  /// The socket has been shut down. Returns the host of a connection that never had a stream,
  /// counted as unused; empty for others.
  std::string Remove(uint64_t id) MOEBIUS_EXCLUDES(mutex_);

  /// A stream began on the connection from this address; 0 when it is not known (any more).
  uint64_t OnStreamBegin(const std::string& host_and_port) MOEBIUS_EXCLUDES(mutex_);
  void OnStreamEnd(uint64_t id, absl::Duration now) MOEBIUS_EXCLUDES(mutex_);

  /// Cuts what has had no stream since `deadline` or longer (all without a stream: infinite
  /// future).
  void CutSilent(absl::Duration deadline) MOEBIUS_EXCLUDES(mutex_);
  /// Since when the longest silent connection has had no stream; infinite when there is none.
  absl::Duration OldestSilence() const MOEBIUS_EXCLUDES(mutex_);
  uint64_t num_of_generation(uint64_t generation) const MOEBIUS_EXCLUDES(mutex_);
  ConnectionFigures figures() const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Connection {
    RemoteAddress remote;
    OwnedFd duplicate;
    uint64_t generation = 0;
    uint32_t num_streams = 0;
    absl::Duration silent_since;
    bool had_stream = false;
    bool is_cut = false;
  };
  const uint32_t max_connections_;
  const uint32_t max_per_address_;
  mutable Mutex mutex_;
  std::map<uint64_t, Connection> connections_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> num_by_host_ MOEBIUS_GUARDED_BY(mutex_);
  std::multimap<std::string, uint64_t> by_address_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t next_id_ MOEBIUS_GUARDED_BY(mutex_) = 1;
  ConnectionFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
