// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>

#include <cstddef>
#include <list>
#include <memory>
#include <thread>

#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// Lets channels go that nobody uses any more, each when it is not connecting: gRPC 1.51 never
/// closes the socket of some that are destroyed while they are.
///
/// Bounded by the links that are given up within `limit`. Thread-safe. Destruction takes a tenth of
/// a second at most and destroys what is left as it is.
class ChannelKeeper {
 public:
  /// `clock` is a monotonic one and outlives the keeper; `limit`: how long connecting may take.
  ChannelKeeper(const Clock& clock, absl::Duration limit) : clock_(clock), limit_(limit) {}
  ~ChannelKeeper() MOEBIUS_EXCLUDES(mutex_);
  ChannelKeeper(const ChannelKeeper&) = delete;
  ChannelKeeper& operator=(const ChannelKeeper&) = delete;

  /// Takes a channel whose calls are over; destroys it at once or later.
  void Keep(std::shared_ptr<grpc::Channel> channel) MOEBIUS_EXCLUDES(mutex_);
  size_t num_kept() const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Kept {
    std::shared_ptr<grpc::Channel> channel;
    absl::Duration end;
  };

  bool IsConnecting(const Kept& kept) const;
  void Watch(Kept& kept);
  void Run() MOEBIUS_EXCLUDES(mutex_);

  const Clock& clock_;
  const absl::Duration limit_;
  mutable Mutex mutex_;
  bool is_closed_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::list<Kept> kept_ MOEBIUS_GUARDED_BY(mutex_);  // each is a tag of the queue
  grpc::CompletionQueue queue_;
  std::thread thread_;  // started by the first that is kept
};

}  // namespace moebius
