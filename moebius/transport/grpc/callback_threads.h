// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace moebius {

/// Keeps gRPC's callback threads from construction to destruction. gRPC ends and joins them with
/// the last channel or server that uses them, also when that goes on one of these threads, which
/// then crashes. Destroyed last, and never from a callback.
///
/// It can let some of them rest. gRPC 1.51 starts half as many as the host has CPUs, at least two,
/// and at every event the one that polls the sockets wakes another one to poll in its place: two
/// more context switches for each message, on CPUs that have something better to do. Where one
/// polls there is nobody to wake. A thread rests inside a callback of its own.
class GrpcCallbackThreads {
 public:
  /// `max_polling`: of all such threads of the process, those that do not rest; at least one
  /// never does. 0: all poll.
  explicit GrpcCallbackThreads(int max_polling);
  ~GrpcCallbackThreads();
  GrpcCallbackThreads(const GrpcCallbackThreads&) = delete;
  GrpcCallbackThreads& operator=(const GrpcCallbackThreads&) = delete;

  /// How many rest for this object.
  int num_resting() const { return static_cast<int>(resting_.size()); }

 private:
  class Resting;
  void LetRest(int max_polling);

  // A server without port, as the public way to a share in the threads.
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<Resting>> resting_;
};

}  // namespace moebius
