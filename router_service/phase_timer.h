// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "router_service/phase_log.h"

namespace moebius {

/// Adds the time since its last lap to a phase, and notes it where the step is traced.
class PhaseTimer {
 public:
  /// Borrows `log`; null: nowhere.
  explicit PhaseTimer(PhaseLog* log = nullptr) : log_(log) { Restart(); }

  void Lap(double* phase_seconds) {
    const absl::Duration before = last_;
    Restart();
    *phase_seconds += absl::ToDoubleSeconds(last_ - before);
  }
  void Lap(double* phase_seconds, StepPhase phase, LayerId layer, int32_t round = 0) {
    const absl::Duration before = last_;
    Lap(phase_seconds);
    if (log_ != nullptr) log_->Add({phase, layer, round, before, last_});
  }
  /// The time since the last lap belongs to no phase.
  void Restart() { last_ = Clock::Monotonic().Now(); }

 private:
  PhaseLog* const log_;
  absl::Duration last_;
};

}  // namespace moebius
