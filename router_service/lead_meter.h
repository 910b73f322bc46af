// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/api/generate.h"
#include "moebius/base/mutex.h"
#include "moebius/telemetry/instruments.h"
#include "moebius/telemetry/registry.h"
#include "router_service/ports.h"
#include "router_service/step_stage.h"

namespace moebius {

/// OK to UNAUTHENTICATED, by their values.
inline constexpr size_t kNumStatusCodes = 17;
using CountByCode = std::array<int64_t, kNumStatusCodes>;

/// Counts since the lead was made.
struct LeadCounters {
  int64_t requests = 0;
  int64_t rejected = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t finished = 0;
  int64_t prompt_tokens = 0;     // of admitted requests
  int64_t generated_tokens = 0;  // sampled
  int64_t steps = 0;             // tried
  int64_t retried_steps = 0;
  int64_t lost_kv_rows = 0;
  int64_t nonfinite_rows = 0;
  int64_t rejected_rows = 0;        // by capacity
  int64_t degraded_capacity = 0;    // answers that a capacity touched
  int64_t degraded_bias = 0;        // answers under other biases than the checkpoint's
  int64_t conservation_errors = 0;  // of steps that failed for it
  StepFigures figures;
  CountByCode rejected_by_code = {};
  CountByCode failed_by_code = {};
  std::array<int64_t, kNumStepStages> slow_steps = {};  // by the stage that took longest
};

/// What a lead tells of its work, for metrics. Counts events; how many requests there are now is
/// read from the lead's tables. Thread-safe.
class LeadMeter {
 public:
  void OnSubmitted(const absl::Status& status) MOEBIUS_EXCLUDES(mutex_);
  /// `waited` since the submission.
  void OnAdmitted(int64_t prompt_tokens, absl::Duration waited) MOEBIUS_EXCLUDES(mutex_);
  void OnStep(const absl::Status& status, const StepResult& result) MOEBIUS_EXCLUDES(mutex_);
  /// So many rows of a session are run again: their keys were lost with an attention rank.
  void OnKvLost(int64_t num_rows) MOEBIUS_EXCLUDES(mutex_);
  /// The attempt of the last OnStep took long, most of it in this stage.
  void OnSlowStep(StepStage stage) MOEBIUS_EXCLUDES(mutex_);
  /// A token was sampled, `waited` after the submission or the token before.
  void OnFirstToken(absl::Duration waited) MOEBIUS_EXCLUDES(mutex_);
  void OnNextToken(absl::Duration waited) MOEBIUS_EXCLUDES(mutex_);
  void OnFinished(const Exactness& exactness) MOEBIUS_EXCLUDES(mutex_);
  /// A call of Forward was answered.
  void OnForward(const StepFigures& figures, const Exactness& exactness) MOEBIUS_EXCLUDES(mutex_);
  void OnCancelled() MOEBIUS_EXCLUDES(mutex_);
  void OnFailed(const absl::Status& status) MOEBIUS_EXCLUDES(mutex_);

  LeadCounters counters() const MOEBIUS_EXCLUDES(mutex_);
  void WriteMetrics(MetricWriter& writer) const MOEBIUS_EXCLUDES(mutex_);

 private:
  void Count(int64_t LeadCounters::*counter, int64_t by = 1) MOEBIUS_EXCLUDES(mutex_);
  void CountDegraded(const Exactness& exactness) MOEBIUS_REQUIRES(mutex_);

  Histogram queue_wait_{Metric::kQueueWaitSeconds};
  Histogram first_token_{Metric::kTimeToFirstTokenSeconds};
  Histogram next_token_{Metric::kInterTokenLatencySeconds};
  mutable Mutex mutex_;
  LeadCounters counters_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
