// SPDX-License-Identifier: Apache-2.0
#include "router_service/trace_budget.h"

#include <algorithm>

namespace moebius {

TraceBudget::TraceBudget(double calls_per_second, const Clock& clock)
    : calls_per_second_(calls_per_second),
      size_(calls_per_second > 0 ? std::max(1.0, calls_per_second) : 0),
      clock_(clock),
      level_(size_),
      filled_at_(clock.Now()) {}

bool TraceBudget::TryTake() {
  MutexLock lock(mutex_);
  const absl::Duration now = clock_.Now();
  level_ = std::min(size_, level_ + calls_per_second_ * absl::ToDoubleSeconds(now - filled_at_));
  filled_at_ = now;
  if (level_ < 1) {
    ++num_refused_;
    return false;
  }
  level_ -= 1;
  return true;
}

int64_t TraceBudget::num_refused() const {
  MutexLock lock(mutex_);
  return num_refused_;
}

}  // namespace moebius
