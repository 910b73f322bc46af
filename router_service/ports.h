// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/api/step_figures.h"
#include "moebius/attention/step_plan.h"
#include "moebius/base/strong_id.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"
#include "router_service/phase_log.h"

namespace moebius {

struct Assignments;
struct DispatchPlan;

// The router's doors. Who answers behind one is a binding: the pipelines of the same process
// (node/), or services over a transport. A port never decides anything: what to compute and where
// is in the plan that it is given.
//
// All calls on one port come from one thread at a time and follow the order of a step:
//   BeginStep ▸ (Forward or RunLayer, layers ascending)… ▸ CommitStep or AbortStep.
// A failed call leaves the step open: the caller aborts it, and may begin it again with the next
// attempt number. Views passed in are borrowed until the call returns.

/// The KV cache behind a port, in blocks that sessions take whole.
struct KvPool {
  int64_t block_tokens = 1;  // positions of one session that a block keeps
  int64_t num_blocks = 0;
  int64_t used_blocks = 0;

  int64_t BlocksFor(int64_t num_tokens) const {
    return (num_tokens + block_tokens - 1) / block_tokens;
  }
};

/// The way to the attention ranks, which own Q/K/V/O projections and the KV cache.
class AttentionPort {
 public:
  virtual ~AttentionPort() = default;

  /// Reserves KV for every row of the step. RESOURCE_EXHAUSTED, with nothing reserved, when it does
  /// not fit.
  virtual absl::Status BeginStep(const StepPlan& step) = 0;

  /// `normed` and `out`: [step.num_rows, hidden_size], bf16, in the order of the step's sessions.
  /// `out` is what the residual gains: after the output projection.
  virtual absl::Status RunLayer(LayerId layer, Bf16Rows normed, MutableBf16Rows out) = 0;

  /// How ranks share the open step's prompt rows, bit m: by AttentionMethod m; 0 with one rank.
  virtual uint32_t step_methods() const { return 0; }

  /// Advances every session of the step by its rows.
  virtual absl::Status CommitStep() = 0;

  /// Forgets the step: lengths are as before BeginStep. Never fails; without an open step a no-op.
  virtual void AbortStep() = 0;

  /// Frees the session's KV. Unknown sessions are ignored.
  virtual void EndSession(SessionId session) = 0;

  virtual KvPool kv_pool() const = 0;

  /// Waits until every rank can take a step, or `timeout` has passed: false then.
  virtual bool WaitUntilUsable(absl::Duration timeout) { return true; }

  /// What went over the network since the port was made; nothing where there is none.
  virtual PortTraffic traffic() const { return {}; }

  /// After a failed step: the sessions whose KV is not whole any more, each told once. What is left
  /// of it has been freed; they start again at position 0.
  virtual std::vector<SessionId> TakeLostSessions() { return {}; }
};

/// Which of a layer's calls of Forward one is.
struct ForwardCall {
  int32_t number = 0;      // from 0, rising by one: tells the messages of a layer's calls apart
  bool is_resend = false;  // its rows were sent in an earlier call, to a service that failed
};

/// How long a step waited for one expert service, over all its layers.
struct ServiceWait {
  ServiceId service;
  absl::Duration wait;
};

/// The way to the expert services, which own all feed-forward weights: routed experts, shared
/// experts and dense layers alike.
class ExpertPort {
 public:
  virtual ~ExpertPort() = default;

  /// Announces a step of at most `step.num_rows` rows per layer.
  virtual absl::Status BeginStep(const StepPlan& step) = 0;

  /// By service index, 1 for a service that may be asked now; empty: all of them. Read for each
  /// plan; the view stays valid until the next call.
  virtual absl::Span<const uint8_t> usable_services() const { return {}; }

  /// Sends each service its rows of `plan` and fills its replies.
  /// `rows`: [plan.num_rows, hidden_size] bf16, what the plan's row ids index.
  /// `replies[s]`: [reply rows of service s by the plan, hidden_size] bf16, in the plan's order.
  ///
  /// OK: every service that is not in `failed` has answered, and its replies are filled. A service
  /// in `failed` (dead, silent, without the weights, or unable to answer this once) has replies
  /// that mean nothing: whoever holds the plan sends its rows elsewhere. A failure is what no other
  /// replica can mend: the dispatch itself is wrong, or the process ends.
  virtual absl::Status Forward(LayerId layer, const DispatchPlan& plan, ForwardCall call,
                               Bf16Rows rows, absl::Span<const MutableBf16Rows> replies,
                               std::vector<ServiceId>* failed) = 0;

  /// Ends the step, finished or not. Never fails; without an open step a no-op.
  virtual void EndStep() = 0;

  /// What went over the network since the port was made; nothing where there is none.
  virtual PortTraffic traffic() const { return {}; }

  /// Of the step that ended last: the service that it waited for longest. Nothing where nobody is
  /// waited for.
  virtual std::optional<ServiceWait> slowest_service() const { return std::nullopt; }

  /// Waits until every expert has a usable service, or `timeout` has passed: false then.
  virtual bool WaitUntilUsable(absl::Duration timeout) { return true; }
};

/// Whether a step answers requests, or is run for what can be seen of it and counts nowhere.
enum class StepPurpose { kServe, kDryRun };

/// What the lead asks of a row owner: the rows of one step and which of them need logits.
struct StepRequest {
  StepPlan plan;
  StepPurpose purpose = StepPurpose::kServe;
  bool wants_phases = false;        // of StepResult
  std::vector<int32_t> token_ids;   // [plan.num_rows], in the vocabulary
  std::vector<int64_t> logit_rows;  // rows whose logits the lead needs, ascending
};

/// Sees the gate of each MoE layer of a step: for teacher-forced comparisons and dry runs.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// `logits`: [num_rows, num_experts] fp32, before the score function.
  virtual void OnGate(LayerId layer, FloatRows logits, const Assignments& assignments) = 0;
};

/// What made an answer other than the model alone would have said.
struct RowEffects {
  int64_t dropped = 0;   // assignments, by capacity
  int64_t rerouted = 0;  // assignments, by capacity
  /// The last version of the biases that were in force instead of the checkpoint's.
  std::optional<uint64_t> bias_version;

  void Add(const RowEffects& later) {
    dropped += later.dropped;
    rerouted += later.rerouted;
    if (later.bias_version.has_value()) bias_version = later.bias_version;
  }
};

/// A row that a capacity rejected: a full expert of `layer` takes `capacity` rows of a step.
struct RejectedRow {
  int64_t row = 0;
  LayerId layer;
  int64_t capacity = 0;
};

/// What a step gives back. Reused from step to step.
struct StepResult {
  RowBatch<float> logits;               // [logit_rows, vocab_size], fp32
  std::vector<int64_t> nonfinite_rows;  // rows of the step that met a NaN or infinity, ascending
  // By row of the step, over all layers; empty where a capacity touched none.
  std::vector<int64_t> dropped_of_row;
  std::vector<int64_t> rerouted_of_row;
  std::vector<RejectedRow> rejected_rows;  // layers ascending, in a layer rows ascending
  std::optional<uint64_t> bias_version;    // of biases instead of the checkpoint's
  StepFigures figures;
  PhaseLog phases;  // of a step that wants them, whether it succeeds or not
  std::optional<ServiceWait> slowest_service;  // ExpertPort's, whether it succeeds or not

  /// Of a new step of so many rows; the logits are left to whoever fills them.
  void Begin(int64_t num_rows) {
    nonfinite_rows.clear();
    dropped_of_row.clear();
    rerouted_of_row.clear();
    rejected_rows.clear();
    bias_version.reset();
    figures = StepFigures();
    figures.num_rows = num_rows;
    phases.Begin(false);
    slowest_service.reset();
  }
};

/// What Forward gives back beside its rows.
struct ForwardResult {
  StepFigures figures;
  RowEffects effects;
  PhaseLog phases;  // where the caller has switched it on
};

/// The way from the lead to the owner of a step's rows: the row pipeline in the same process, or
/// other processes in the co-located topology. Calls come from one thread at a time.
class RowOwnerPort {
 public:
  virtual ~RowOwnerPort() = default;

  /// Runs the step through all layers and commits its KV. On failure the step is aborted and
  /// nothing of it is kept: the same step may run again with the next attempt number. Rows in
  /// `result->nonfinite_rows` have no meaning; all other rows are as if those had not been there.
  /// So have the rows of sessions with a rejected row.
  virtual absl::Status RunStep(const StepRequest& request, StepResult* result) = 0;

  virtual void EndSession(SessionId session) = 0;
  virtual KvPool kv_pool() const = 0;

  /// After a step that failed with UNAVAILABLE: waits until all services that steps need are there
  /// again, or `timeout` has passed: false then. True at once when none is missing.
  virtual bool WaitUntilUsable(absl::Duration timeout) { return true; }

  /// After a failed step: AttentionPort::TakeLostSessions.
  virtual std::vector<SessionId> TakeLostSessions() { return {}; }
};

}  // namespace moebius
