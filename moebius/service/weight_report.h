// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/model/packed_cache.h"
#include "moebius/model/weight_load.h"
#include "moebius/service/run.h"
#include "moebius/telemetry/registry.h"

namespace moebius {

/// What a service that loads weights says of that: one line in its log for each load, and metrics
/// of the last one. Thread-safe. Borrows the cache.
class WeightReport {
 public:
  explicit WeightReport(const PackedCache& cache, const Clock& clock = Clock::Monotonic())
      : cache_(cache), clock_(clock) {}

  /// A load is under way: a line every five seconds.
  void LogProgress(int64_t loaded_bytes, int64_t total_bytes, ProcessNotices& notices)
      MOEBIUS_EXCLUDES(mutex_);
  /// A line for what the cache could not give or keep, and one for the load.
  void Log(const WeightLoadFigures& figures, ProcessNotices& notices) MOEBIUS_EXCLUDES(mutex_);
  void WriteMetrics(MetricWriter& writer) const MOEBIUS_EXCLUDES(mutex_);

 private:
  const PackedCache& cache_;
  const Clock& clock_;
  mutable Mutex mutex_;
  WeightLoadFigures last_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Duration next_line_ MOEBIUS_GUARDED_BY(mutex_) = absl::ZeroDuration();  // 0: no load
};

}  // namespace moebius
