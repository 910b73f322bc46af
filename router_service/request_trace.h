// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/random.h"
#include "moebius/telemetry/trace/trace_span.h"
#include "router_service/phase_log.h"
#include "router_service/trace_budget.h"

namespace moebius {

/// Whose spans are recorded, and where they go.
struct TraceRule {
  TraceSink* sink = nullptr;  // null: nobody's; outlives all that record
  double sample_ratio = 0;    // of calls that bring no trace, [0, 1]
  /// Of calls whose trace is sampled; outlives all that record. Null: all of them.
  TraceBudget* callers = nullptr;
};

/// One try of a step that a call took part in. Times are of Clock::Monotonic().
struct TracedStep {
  uint64_t step = 0;
  uint64_t attempt = 0;
  int64_t num_rows = 0;  // of the step
  int64_t own_rows = 0;  // the call's among them
  absl::Duration begin;
  absl::Duration end;
  const PhaseLog* phases = nullptr;
  absl::Status status;
};

/// The spans of one call that is sampled:
///
///   generate ─┬─ admission
///             └─ step ─┬─ attention, gate, dispatch, forward, combine of a layer
///             └─ step  └─ … of the next
///
/// Steps with phases have at most kMaxSpans spans together. The first that does not fit and those
/// after it are told without their phases, up to kMaxBareSteps; the root says how many had none and
/// how many were left out.
///
/// Not thread-safe; may go from one thread to another. Nothing waits: the sink drops what it has no
/// room for.
class RequestTrace {
 public:
  static constexpr int64_t kMaxSpans = 2048;
  static constexpr int64_t kMaxBareSteps = 1024;

  /// Begins the root, a constant name, now. A caller's valid `traceparent` decides whether the call
  /// is sampled, as far as the rule's budget reaches, and whose child the root is; without one the
  /// rule's ratio does. Null where it is not.
  static std::unique_ptr<RequestTrace> Begin(const TraceRule& rule, absl::string_view traceparent,
                                             absl::string_view name);

  const TraceId& trace_id() const { return trace_; }
  /// The phases of the next step have room.
  bool wants_phases() const { return num_spans_ < kMaxSpans; }

  /// The call waited until now.
  void OnAdmitted();
  void OnStep(const TracedStep& step);
  /// Ends the root. Once, and last.
  void End(std::vector<TraceAttribute> attributes, const absl::Status& status);

 private:
  RequestTrace(TraceSink* sink, const TraceContext& context, absl::string_view name,
               const Random& random);

  TraceSpan MakeSpan(absl::string_view name, TraceSpanId parent, absl::Duration begin,
                     absl::Duration end);
  TraceSpanId DrawId();

  TraceSink* const sink_;
  const TraceId trace_;
  const TraceSpanId caller_;
  const absl::string_view name_;
  Random random_;
  const TraceSpanId root_;
  const absl::Duration begin_;
  const absl::Time wall_begin_;  // the same moment
  std::optional<absl::Duration> admitted_at_;
  int64_t num_spans_ = 0;  // of steps with phases
  int64_t num_bare_steps_ = 0;
  int64_t num_left_out_ = 0;
};

/// The id that log lines of a call carry: of its trace, else of the caller's valid `traceparent`;
/// empty where there is neither.
std::string TraceIdOf(const RequestTrace* trace, absl::string_view traceparent);

}  // namespace moebius
