// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/clock.h"

#include <time.h>

#include "moebius/base/check.h"

namespace moebius {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Duration Now() const override {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::Seconds(now.tv_sec) + absl::Nanoseconds(now.tv_nsec);
  }
};

}  // namespace

const Clock& Clock::Monotonic() {
  static const MonotonicClock clock;
  return clock;
}

absl::Duration FakeClock::Now() const {
  MutexLock lock(mutex_);
  return now_;
}

void FakeClock::Advance(absl::Duration by) {
  MOEBIUS_CHECK(by >= absl::ZeroDuration());
  MutexLock lock(mutex_);
  now_ += by;
}

}  // namespace moebius
