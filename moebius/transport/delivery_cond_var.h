// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <thread>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/transport/link.h"

namespace moebius {

/// A condition variable for what deliveries change. Where the transport has a poller, the thread
/// that waits receives deliveries meanwhile, its own and others', and nobody has to wake it.
///
/// All calls with the one mutex held that guards the condition, which is released while a thread
/// waits. What deliveries lock must not be held by whoever waits. Waits may wake without a signal.
class DeliveryCondVar {
 public:
  /// `poller` outlives every Wait; null: the thread sleeps until it is woken.
  explicit DeliveryCondVar(DeliveryPoller* poller) : poller_(poller) {}
  DeliveryCondVar(const DeliveryCondVar&) = delete;
  DeliveryCondVar& operator=(const DeliveryCondVar&) = delete;

  void Wait(Mutex& mutex) MOEBIUS_REQUIRES(mutex) {
    if (poller_ == nullptr) return condition_.Wait(mutex);
    const uint64_t seen = num_signals_;
    // Not with the mutex: whoever is in may be delivering to it.
    mutex.Unlock();
    const bool has_entered = poller_->TryEnter();
    mutex.Lock();
    if (!has_entered) {
      if (num_signals_ == seen) condition_.Wait(mutex);
      poller_->StopSleeping();
      return;
    }
    is_polled_ = true;
    polling_thread_ = std::this_thread::get_id();
    while (num_signals_ == seen) {
      mutex.Unlock();
      poller_->PollOnce();
      mutex.Lock();
    }
    is_polled_ = false;
    poller_->Leave();
  }

  /// Sleeps, in any case. True when `timeout` passed without a signal.
  bool WaitWithTimeout(Mutex& mutex, absl::Duration timeout) MOEBIUS_REQUIRES(mutex) {
    return condition_.WaitWithTimeout(mutex, timeout);
  }

  void SignalAll() {
    ++num_signals_;
    condition_.SignalAll();
    if (is_polled_ && polling_thread_ != std::this_thread::get_id()) poller_->Wake();
  }

 private:
  DeliveryPoller* const poller_;
  CondVar condition_;
  // Guarded by the caller's mutex.
  uint64_t num_signals_ = 0;
  bool is_polled_ = false;
  std::thread::id polling_thread_;
};

}  // namespace moebius
