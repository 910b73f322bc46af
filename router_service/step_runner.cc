// SPDX-License-Identifier: Apache-2.0
#include "router_service/step_runner.h"

#include <optional>
#include <vector>

#include "moebius/base/error.h"
#include "router_service/request_trace.h"

namespace moebius {

StepRunner::StepRunner(const Limits& limits, RowOwnerPort* owner, LeadMeter* meter,
                       const SessionsById* sessions, const Clock& clock)
    : limits_(limits),
      owner_(*owner),
      meter_(*meter),
      sessions_(*sessions),
      clock_(clock),
      watch_(limits.slow_step) {}

absl::Status StepRunner::Run(uint64_t step, absl::Span<const ScheduledRows> schedule) {
  BuildRequest(step, schedule);
  absl::Status status;
  misses_service_ = false;
  lost_kv_ = false;
  for (int64_t attempt = 0; attempt < limits_.max_attempts; ++attempt) {
    request_.plan.attempt = static_cast<uint64_t>(attempt);
    const absl::Duration begin = clock_.Now();
    status = RunAttempt();
    meter_.OnStep(status, result_);
    Watch(status, clock_.Now() - begin);
    if (status.ok()) return status;
    lost_kv_ = DropLostSessions();
    if (!IsRetryable(status)) return status;
    misses_service_ = absl::IsUnavailable(status) && !owner_.WaitUntilUsable(absl::ZeroDuration());
    if (misses_service_ || lost_kv_) return status;
  }
  return status;
}

void StepRunner::BuildRequest(uint64_t step, absl::Span<const ScheduledRows> schedule) {
  request_.plan.step = step;
  request_.plan.attempt = 0;
  request_.plan.sessions.clear();
  request_.plan.num_rows = 0;
  request_.token_ids.clear();
  request_.logit_rows.clear();
  request_.wants_phases = false;
  is_traced_ = false;
  for (const ScheduledRows& rows : schedule) {
    const Session& session = SessionOf(rows.session);
    session.AppendRows(rows.num_rows, &request_);
    if (session.trace() == nullptr) continue;
    is_traced_ = true;
    request_.wants_phases = request_.wants_phases || session.trace()->wants_phases();
  }
}

absl::Status StepRunner::RunAttempt() {
  if (!is_traced_) return owner_.RunStep(request_, &result_);
  result_.phases.Begin(false);  // of the step before
  const absl::Duration begin = Clock::Monotonic().Now();
  absl::Status status = owner_.RunStep(request_, &result_);
  Trace(status, begin);
  return status;
}

void StepRunner::Watch(const absl::Status& status, absl::Duration took) {
  const std::optional<SlowStage> slowest = watch_.Judge(status, took, result_.figures);
  if (!slowest.has_value()) return;
  meter_.OnSlowStep(slowest->stage);
  if (!on_slow_) return;
  SlowStep slow;
  slow.step = request_.plan.step;
  slow.attempt = request_.plan.attempt;
  slow.status = status;
  slow.num_rows = request_.plan.num_rows;
  slow.took = took;
  slow.slowest = *slowest;
  if (slowest->stage == StepStage::kExperts) slow.expert_service = result_.slowest_service;
  slow.num_requests = static_cast<int64_t>(request_.plan.sessions.size());
  for (const SessionRows& rows : request_.plan.sessions) {
    if (slow.request_ids.size() == SlowStep::kMaxRequestIds) break;
    slow.request_ids.push_back(SessionOf(rows.session).request_id());
  }
  on_slow_(slow);
}

void StepRunner::Trace(const absl::Status& status, absl::Duration begin) {
  TracedStep step;
  step.status = status;
  step.begin = begin;
  step.end = Clock::Monotonic().Now();
  step.step = request_.plan.step;
  step.attempt = request_.plan.attempt;
  step.num_rows = request_.plan.num_rows;
  step.phases = &result_.phases;
  for (const SessionRows& rows : request_.plan.sessions) {
    RequestTrace* const trace = SessionOf(rows.session).trace();
    if (trace == nullptr) continue;
    step.own_rows = rows.num_rows;
    trace->OnStep(step);
  }
}

bool StepRunner::DropLostSessions() {
  const std::vector<SessionId> lost = owner_.TakeLostSessions();
  for (const SessionId id : lost) {
    const auto session = sessions_.find(id.value());
    if (session != sessions_.end()) meter_.OnKvLost(session->second->LoseKv());
  }
  return !lost.empty();
}

}  // namespace moebius
