// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/mutex.h"
#include "moebius/base/owned_fd.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"

namespace moebius {

/// Hears on the loop's thread that a descriptor has become ready.
class PollWatcher {
 public:
  virtual ~PollWatcher() = default;
  /// `tag` as given to Watch or Again; `events` are epoll's, 0 after Again.
  virtual void OnReady(uint32_t tag, uint32_t events) = 0;
};

/// Sleeps until a watched descriptor, a timer or a reaction is ready: on a thread of its own, or on
/// one that waits for deliveries meanwhile (DeliveryPoller). Whichever of them is in is "the loop's
/// thread"; one at a time is.
class PollLoop final : public DeliveryPoller {
 public:
  static absl::StatusOr<std::unique_ptr<PollLoop>> Start();
  /// No watcher is called and no reaction runs after this.
  ~PollLoop() override;

  bool TryEnter() override;
  void StopSleeping() override;
  void PollOnce() override;
  void Leave() override;
  void Wake() override;

  /// How often the thread has waited, since the start. Thread-safe.
  uint64_t num_waits() const { return num_waits_.load(std::memory_order_relaxed); }
  /// Runs on the loop's thread. Thread-safe.
  void Post(Reactor::Reaction reaction);
  /// The descriptor must still be open; no event of it begins after this when it is called on the
  /// loop's thread. Thread-safe.
  void Forget(uint64_t id, int fd);

  // The rest on the loop's thread only.

  /// Reports each time when `events` come anew (edge-triggered), until Forget. RESOURCE_EXHAUSTED
  /// when the kernel has no room. Never returns id 0.
  absl::StatusOr<uint64_t> Watch(int fd, uint32_t events, std::shared_ptr<PollWatcher> watcher,
                                 uint32_t tag);
  /// Calls the watcher again after all that is ready now had its turn.
  void Again(std::shared_ptr<PollWatcher> watcher, uint32_t tag);
  void RunAt(absl::Duration time, Reactor::Reaction reaction) {
    reactor_.RunAt(time, std::move(reaction));
  }
  absl::Duration Now() const { return reactor_.clock().Now(); }

 private:
  struct Watched {
    std::shared_ptr<PollWatcher> watcher;
    uint32_t tag = 0;
  };

  PollLoop(OwnedFd epoll, OwnedFd wake);
  void Loop();
  bool EnterOwn() MOEBIUS_EXCLUDES(seat_mutex_);
  void LeaveOwn() MOEBIUS_EXCLUDES(seat_mutex_);
  void RunAgain();
  int WaitMilliseconds() const;

  const OwnedFd epoll_;
  const OwnedFd wake_;
  Reactor reactor_{Clock::Monotonic()};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> num_waits_{0};
  std::atomic<std::thread::id> runner_{};  // the loop's thread while it runs

  // Who is in. The own thread stays out for a while after a guest, who is expected back.
  Mutex seat_mutex_;
  CondVar own_wakeup_;
  CondVar guest_wakeup_;
  bool has_guest_ MOEBIUS_GUARDED_BY(seat_mutex_) = false;
  bool is_own_in_ MOEBIUS_GUARDED_BY(seat_mutex_) = false;
  bool own_waits_for_guest_ MOEBIUS_GUARDED_BY(seat_mutex_) = false;
  int num_sleepers_ MOEBIUS_GUARDED_BY(seat_mutex_) = 0;  // wait for deliveries elsewhere
  absl::Duration guest_left_at_ MOEBIUS_GUARDED_BY(seat_mutex_) = -absl::InfiniteDuration();

  // Of the loop's thread.
  absl::flat_hash_map<uint64_t, Watched> watched_;
  std::vector<Watched> again_;
  std::vector<Watched> again_now_;  // empty but while they are called
  uint64_t next_id_ = 1;
  std::thread thread_;  // last: it uses the above
};

}  // namespace moebius
