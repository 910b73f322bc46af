// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// How many calls a second are traced because their caller says so: a bucket that holds one
/// second's worth, one call at least, and fills evenly. So that whoever may call cannot have every
/// call traced. Thread-safe.
class TraceBudget {
 public:
  /// `calls_per_second` from 0, which is none, to kMaxTraceCallerRate. `clock` outlives the budget.
  TraceBudget(double calls_per_second, const Clock& clock);

  /// False where nothing is left; such calls are counted.
  bool TryTake() MOEBIUS_EXCLUDES(mutex_);
  int64_t num_refused() const MOEBIUS_EXCLUDES(mutex_);

 private:
  const double calls_per_second_;
  const double size_;  // of the bucket, in calls
  const Clock& clock_;
  mutable Mutex mutex_;
  double level_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Duration filled_at_ MOEBIUS_GUARDED_BY(mutex_);
  int64_t num_refused_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

/// Calls a second: more than any router answers.
inline constexpr double kMaxTraceCallerRate = 1e6;

}  // namespace moebius
