// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/api/generate.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/model/tokenizer.h"
#include "router_service/generate_stream.h"
#include "router_service/lead_meter.h"
#include "router_service/lead_options.h"
#include "router_service/ports.h"
#include "router_service/request_log.h"
#include "router_service/request_trace.h"
#include "router_service/slow_step.h"

namespace moebius {

/// What a lead holds at one moment, computed from its tables.
struct LeadUsage {
  int64_t queued_requests = 0;
  int64_t running_sessions = 0;
  int64_t reserved_kv_tokens = 0;
  int64_t kv_capacity_tokens = 0;  // of the pool; never changes
};

/// Says which rows of which sessions a step holds, and what their logits mean: admission,
/// scheduling, sampling, stopping, streaming. It computes no layer and owns no row: steps run
/// behind its port.
///
/// Invariants:
/// 1. An admitted request has KV for prompt + max_tokens set aside; it never waits in the middle.
/// 2. A failing request (NaN rows, a failed step that it alone causes) never ends another one.
/// 3. A session's answer depends on its request alone.
/// 4. Cancelled, expired and finished sessions give back their KV before the next step begins.
///
/// Submit, RunBetweenSteps, Shutdown and usage are thread-safe. RunOneStep and WaitForWork belong
/// to one thread.
class Lead {
 public:
  /// Borrows `owner`, `executor` (where sampling runs), `tokenizer` (null: no stop strings) and
  /// `clock`.
  Lead(const LeadOptions& options, RowOwnerPort* owner, Executor* executor,
       const Tokenizer* tokenizer, const Clock& clock);
  ~Lead();

  /// Checks the request and queues it. INVALID_ARGUMENT for ids and fields out of range,
  /// RESOURCE_EXHAUSTED for what can never fit or a full queue, ALREADY_EXISTS for a running
  /// request_id that asks otherwise (the same is followed), UNAVAILABLE while shutting down. The
  /// stream's reader cancels by GenerateStream::Cancel or by dropping it.
  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request);

  /// Counts a request that was refused before it came here.
  void NoteRefused(const absl::Status& reason);

  /// Admits, runs one step, samples, delivers. False when there was nothing to run.
  bool RunOneStep();

  /// Calls `body` on the stepping thread at a moment when no step runs, and returns when it has
  /// ended: the row owner is the body's meanwhile, and the numbers that it takes from `*next_step`
  /// are steps of its own. At most one body between two steps. DEADLINE_EXCEEDED when its turn did
  /// not come within `timeout`, UNAVAILABLE while shutting down, RESOURCE_EXHAUSTED when too many
  /// wait; `body` has then not been called. Thread-safe; not from the stepping thread.
  absl::Status RunBetweenSteps(absl::FunctionRef<void(uint64_t* next_step)> body,
                               absl::Duration timeout);

  /// Where requests are noted; null for nowhere. Borrowed. Before the first request.
  void SetLog(RequestLog* log);
  /// Who hears of steps that took longer than LeadOptions::slow_step; nobody. Before the first
  /// request.
  void SetOnSlowStep(SlowStepNotice on_slow);
  /// Whose spans are recorded; nobody's. Before the first request. A request that is refused, or
  /// follows another, has none.
  void SetTracing(const TraceRule& rule);

  /// Blocks until there may be work, `timeout` has passed or Shutdown was called.
  void WaitForWork(absl::Duration timeout);

  /// Ends every request with UNAVAILABLE and refuses new ones.
  void Shutdown();
  bool is_shut_down() const;

  LeadUsage usage() const;
  LeadCounters counters() const;
  const LeadMeter& meter() const;
  /// Rows that went through the experts between two steps, for somebody else. Thread-safe.
  void CountForward(const StepFigures& figures, const Exactness& exactness);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
