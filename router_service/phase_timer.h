// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"

#include "moebius/base/clock.h"

namespace moebius {

/// Adds the time since its last lap to a phase.
class PhaseTimer {
 public:
  PhaseTimer() { Restart(); }

  void Lap(double* phase_seconds) {
    const absl::Duration before = last_;
    Restart();
    *phase_seconds += absl::ToDoubleSeconds(last_ - before);
  }
  /// The time since the last lap belongs to no phase.
  void Restart() { last_ = Clock::Monotonic().Now(); }

 private:
  absl::Duration last_;
};

}  // namespace moebius
