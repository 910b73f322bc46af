// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"

#include "moebius/base/mutex.h"

namespace moebius {

/// Monotonic time. Every duration of the product comes from here; wall time is for logs only.
/// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Time since an arbitrary fixed point; never steps back.
  virtual absl::Duration Now() const = 0;

  /// The machine's monotonic clock.
  static const Clock& Monotonic();
};

/// A clock that moves only when told, for exact tests. Thread-safe.
class FakeClock final : public Clock {
 public:
  absl::Duration Now() const override;
  void Advance(absl::Duration by);

 private:
  mutable Mutex mutex_;
  absl::Duration now_ MOEBIUS_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

}  // namespace moebius
