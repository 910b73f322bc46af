// SPDX-License-Identifier: Apache-2.0
#include "router_service/lead_meter.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

size_t CodeIndex(const absl::Status& status) {
  const size_t index = static_cast<size_t>(status.raw_code());
  return index < kNumStatusCodes ? index : static_cast<size_t>(absl::StatusCode::kUnknown);
}

// A failure's series from 0 on: whoever alerts on a rise needs the value before it.
void WriteByCode(Metric metric, const CountByCode& counts, MetricWriter& writer) {
  for (size_t index = 1; index < kNumStatusCodes; ++index) {
    const std::string reason =
        absl::AsciiStrToLower(absl::StatusCodeToString(static_cast<absl::StatusCode>(index)));
    writer.WriteCounter(metric, static_cast<double>(counts[index]), {reason});
  }
}

void WriteStepFigures(const StepFigures& figures, MetricWriter& writer) {
  const std::array<double, kNumPhaseStages> phases = PhaseSeconds(figures);
  for (size_t stage = 0; stage < kNumPhaseStages; ++stage) {
    writer.WriteCounter(Metric::kStepPhaseSeconds, phases[stage],
                        {StepStageName(static_cast<StepStage>(stage))});
  }
  const auto write = [&](Metric metric, int64_t value, LabelValues labels = {}) {
    writer.WriteCounter(metric, static_cast<double>(value), labels);
  };
  writer.WriteCounter(Metric::kStepStallSeconds, figures.stall_seconds);
  write(Metric::kStepRows, figures.num_rows);
  // routed = combined + dropped, and dispatched = combined.
  write(Metric::kAssignments, figures.assignments + figures.nonfinite_assignments, {"routed"});
  write(Metric::kAssignments, figures.dispatched, {"dispatched"});
  write(Metric::kAssignments, figures.combined, {"combined"});
  write(Metric::kAssignmentsDropped, figures.dropped, {"capacity"});
  write(Metric::kAssignmentsDropped, figures.nonfinite_assignments, {"nonfinite"});
  write(Metric::kAssignmentsRerouted, figures.rerouted);
  write(Metric::kDispatchedRows, figures.dispatched_rows);
  write(Metric::kReplyRows, figures.reply_rows);
  write(Metric::kRecomputed, figures.resends, {"dispatch_rounds"});
  write(Metric::kRecomputed, figures.resent_rows, {"rows"});
  write(Metric::kGateGroupFillMismatches, figures.group_fill_mismatches);
}

}  // namespace

void LeadMeter::OnSubmitted(const absl::Status& status) {
  MutexLock lock(mutex_);
  ++counters_.requests;
  if (status.ok()) return;
  ++counters_.rejected;
  ++counters_.rejected_by_code[CodeIndex(status)];
}

void LeadMeter::OnAdmitted(int64_t prompt_tokens, absl::Duration waited) {
  queue_wait_.Observe(waited);
  Count(&LeadCounters::prompt_tokens, prompt_tokens);
}

void LeadMeter::OnStep(const absl::Status& status, const StepResult& result) {
  MutexLock lock(mutex_);
  ++counters_.steps;
  if (status.ok()) {
    counters_.figures.Add(result.figures);
    counters_.nonfinite_rows += static_cast<int64_t>(result.nonfinite_rows.size());
    counters_.rejected_rows += static_cast<int64_t>(result.rejected_rows.size());
  } else if (IsRetryable(status)) {
    ++counters_.retried_steps;
  } else {
    counters_.conservation_errors += result.figures.conservation_errors;
  }
}

void LeadMeter::OnKvLost(int64_t num_rows) { Count(&LeadCounters::lost_kv_rows, num_rows); }

void LeadMeter::OnSlowStep(StepStage stage) {
  MutexLock lock(mutex_);
  ++counters_.slow_steps[static_cast<size_t>(stage)];
}

void LeadMeter::OnForward(const StepFigures& figures, const Exactness& exactness) {
  MutexLock lock(mutex_);
  counters_.figures.Add(figures);
  CountDegraded(exactness);
}

void LeadMeter::OnFirstToken(absl::Duration waited) {
  first_token_.Observe(waited);
  Count(&LeadCounters::generated_tokens);
}

void LeadMeter::OnNextToken(absl::Duration waited) {
  next_token_.Observe(waited);
  Count(&LeadCounters::generated_tokens);
}

void LeadMeter::OnFinished(const Exactness& exactness) {
  MutexLock lock(mutex_);
  ++counters_.finished;
  CountDegraded(exactness);
}
void LeadMeter::OnCancelled() { Count(&LeadCounters::cancelled); }

void LeadMeter::OnFailed(const absl::Status& status) {
  MutexLock lock(mutex_);
  ++counters_.failed;
  ++counters_.failed_by_code[CodeIndex(status)];
}

LeadCounters LeadMeter::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

void LeadMeter::WriteMetrics(MetricWriter& writer) const {
  const LeadCounters now = counters();
  const auto write = [&](Metric metric, int64_t value, LabelValues labels = {}) {
    writer.WriteCounter(metric, static_cast<double>(value), labels);
  };
  WriteByCode(Metric::kRequestsRejected, now.rejected_by_code, writer);
  WriteByCode(Metric::kRequestsFailed, now.failed_by_code, writer);
  write(Metric::kRequestsCancelled, now.cancelled);
  write(Metric::kRequestsFinished, now.finished);
  writer.WriteHistogram(queue_wait_);
  writer.WriteHistogram(first_token_);
  writer.WriteHistogram(next_token_);
  write(Metric::kPromptTokens, now.prompt_tokens);
  write(Metric::kGeneratedTokens, now.generated_tokens);
  write(Metric::kRecomputed, now.lost_kv_rows, {"kv_rows"});
  write(Metric::kSteps, now.steps);
  write(Metric::kStepRetries, now.retried_steps);
  for (size_t stage = 0; stage < kNumStepStages; ++stage) {
    write(Metric::kSlowSteps, now.slow_steps[stage],
          {StepStageName(static_cast<StepStage>(stage))});
  }
  write(Metric::kNonfiniteRows, now.nonfinite_rows, {"step"});
  write(Metric::kCapacityRejectedRows, now.rejected_rows);
  write(Metric::kDegradedResponses, now.degraded_capacity, {"capacity"});
  write(Metric::kDegradedResponses, now.degraded_bias, {"bias"});
  write(Metric::kTokenConservationErrors, now.conservation_errors);
  WriteStepFigures(now.figures, writer);
}

void LeadMeter::CountDegraded(const Exactness& exactness) {
  if (exactness.dropped > 0 || exactness.rerouted > 0) ++counters_.degraded_capacity;
  if (exactness.bias_override) ++counters_.degraded_bias;
}

void LeadMeter::Count(int64_t LeadCounters::*counter, int64_t by) {
  MutexLock lock(mutex_);
  counters_.*counter += by;
}

}  // namespace moebius
