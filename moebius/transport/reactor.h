// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/base/spare_memory.h"

namespace moebius {

/// A queue of short reactions and timers that run one at a time, in order, on whoever calls
/// `RunReady`: a test, or a ReactorThread. A reaction never computes, blocks or waits; work goes to
/// an executor.
///
/// Thread-safe, save that only one thread at a time may call `RunReady`.
class Reactor {
 public:
  using Reaction = absl::AnyInvocable<void()>;
  using TimerId = std::pair<absl::Duration, uint64_t>;

  /// `clock` decides when timers are due and must outlive the reactor.
  explicit Reactor(const Clock& clock) : clock_(clock) {}

  /// Runs after everything that was posted before.
  void Post(Reaction reaction);
  /// Runs when the clock has reached `time`; equal times in the order of the calls.
  TimerId RunAt(absl::Duration time, Reaction reaction);
  /// The timer will not run; false when it has run, is running or was cancelled before.
  bool Cancel(const TimerId& id);

  /// Runs all that is posted or due, and what that posts, until nothing is left. Returns how many.
  int RunReady();
  /// When the earliest timer is due.
  std::optional<absl::Duration> NextTimer() const;
  /// Waits until something may be ready, or Wake is called. For a monotonic clock only.
  void WaitUntilReady();
  /// Ends a wait.
  void Wake();

  const Clock& clock() const { return clock_; }

 private:
  bool TakeReady(Reaction* reaction);

  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  SpareDeque<Reaction> posted_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<TimerId, Reaction> timers_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t next_timer_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool woken_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

/// Runs a reactor on a thread of its own from construction to destruction.
class ReactorThread {
 public:
  explicit ReactorThread(Reactor& reactor);
  ~ReactorThread();
  ReactorThread(const ReactorThread&) = delete;
  ReactorThread& operator=(const ReactorThread&) = delete;

 private:
  Reactor& reactor_;
  Mutex mutex_;
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace moebius
