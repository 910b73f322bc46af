// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"

#include "moebius/base/mutex.h"

namespace moebius {

/// Tells one waiting thread that there may be work; a signal that comes before the wait is kept.
/// Thread-safe.
class WakeSignal {
 public:
  void Raise() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    raised_ = true;
    changed_.SignalAll();
  }
  /// Returns after a signal, or when `timeout` has passed, or earlier.
  void Wait(absl::Duration timeout) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!raised_) changed_.WaitWithTimeout(mutex_, timeout);
    raised_ = false;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool raised_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

}  // namespace moebius
