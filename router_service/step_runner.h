// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/base/clock.h"
#include "router_service/lead_meter.h"
#include "router_service/ports.h"
#include "router_service/session.h"
#include "router_service/slow_step.h"
#include "router_service/step_schedule.h"

namespace moebius {

/// Running sessions by id. Borrowed.
using SessionsById = std::map<uint64_t, Session*>;

/// Runs a schedule's rows through the row owner as one step, in as many attempts as may help, and
/// keeps what came of it until the next one.
///
/// Not thread-safe: the stepping thread's own.
class StepRunner {
 public:
  struct Limits {
    int64_t max_attempts = 1;
    absl::Duration slow_step = absl::InfiniteDuration();  // LeadOptions has both
  };
  /// Borrows `owner`, `meter` (which counts every attempt), `sessions` and `clock`.
  StepRunner(const Limits& limits, RowOwnerPort* owner, LeadMeter* meter,
             const SessionsById* sessions, const Clock& clock);

  void SetOnSlow(SlowStepNotice on_slow) { on_slow_ = std::move(on_slow); }

  /// Sessions that lost KV with an attention rank are told so and run all their tokens again.
  absl::Status Run(uint64_t step, absl::Span<const ScheduledRows> schedule);

  const StepRequest& request() const { return request_; }
  const StepResult& result() const { return result_; }
  /// Why the last step failed: a service is missing, so another attempt would miss it too; sessions
  /// are without their KV.
  bool misses_service() const { return misses_service_; }
  bool lost_kv() const { return lost_kv_; }

 private:
  void BuildRequest(uint64_t step, absl::Span<const ScheduledRows> schedule);
  absl::Status RunAttempt();
  void Watch(const absl::Status& status, absl::Duration took);
  void Trace(const absl::Status& status, absl::Duration begin);
  bool DropLostSessions();
  Session& SessionOf(SessionId id) const { return *sessions_.at(id.value()); }

  const Limits limits_;
  RowOwnerPort& owner_;
  LeadMeter& meter_;
  const SessionsById& sessions_;
  const Clock& clock_;
  StepWatch watch_;
  SlowStepNotice on_slow_;
  StepRequest request_;
  StepResult result_;
  bool is_traced_ = false;  // a session of request_ has a trace
  bool misses_service_ = false;
  bool lost_kv_ = false;
};

}  // namespace moebius
