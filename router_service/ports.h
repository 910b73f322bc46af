// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/attention/step_plan.h"
#include "moebius/base/strong_id.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

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

  /// Advances every session of the step by its rows.
  virtual absl::Status CommitStep() = 0;

  /// Forgets the step: lengths are as before BeginStep. Never fails; without an open step a no-op.
  virtual void AbortStep() = 0;

  /// Frees the session's KV. Unknown sessions are ignored.
  virtual void EndSession(SessionId session) = 0;

  virtual KvPool kv_pool() const = 0;
};

/// The way to the expert services, which own all feed-forward weights: routed experts, shared
/// experts and dense layers alike.
class ExpertPort {
 public:
  virtual ~ExpertPort() = default;

  /// Announces a step of at most `step.num_rows` rows per layer, so that every service reserves
  /// room for rows and replies before any data flows (a reply can then never block).
  virtual absl::Status BeginStep(const StepPlan& step) = 0;

  /// Sends each service its rows of `plan` and fills its replies.
  /// `rows`: [num_rows, hidden_size] bf16, all of the step's normalised rows.
  /// `replies[s]`: [reply rows of service s by the plan, hidden_size] bf16, in the plan's order.
  /// UNAVAILABLE names the experts that nobody could compute.
  virtual absl::Status Forward(LayerId layer, const DispatchPlan& plan, Bf16Rows rows,
                               absl::Span<const MutableBf16Rows> replies) = 0;

  /// Ends the step, finished or not. Never fails; without an open step a no-op.
  virtual void EndStep() = 0;
};

/// What the lead asks of a row owner: the rows of one step and which of them need logits.
struct StepRequest {
  StepPlan plan;
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

/// Seconds of the monotonic clock that a step spent in each phase, and what it counted.
struct StepFigures {
  double embed_seconds = 0;
  double attention_seconds = 0;  // the attention port, waiting included
  double norm_seconds = 0;
  double gate_seconds = 0;
  double plan_seconds = 0;
  double expert_seconds = 0;  // the expert port, waiting included
  double combine_seconds = 0;
  double head_seconds = 0;
  int64_t num_rows = 0;
  int64_t assignments = 0;      // routed: T·k over all MoE layers, without refused rows
  int64_t dropped = 0;          // by capacity; 0 while dropless
  int64_t dispatched_rows = 0;  // a row counts once per service and layer
  int64_t reply_rows = 0;
  int64_t group_fill_mismatches = 0;  // rows whose choice the other group fill would change

  void Add(const StepFigures& other);
};

/// What a step gives back. Reused from step to step.
struct StepResult {
  RowBatch<float> logits;               // [logit_rows, vocab_size], fp32
  std::vector<int64_t> nonfinite_rows;  // rows of the step that met a NaN or infinity, ascending
  StepFigures figures;
};

/// The way from the lead to the owner of a step's rows: the row pipeline in the same process, or
/// other processes in the co-located topology. Calls come from one thread at a time.
class RowOwnerPort {
 public:
  virtual ~RowOwnerPort() = default;

  /// Runs the step through all layers and commits its KV. On failure the step is aborted and
  /// nothing of it is kept: the same step may run again with the next attempt number. Rows in
  /// `result->nonfinite_rows` have no meaning; all other rows are as if those had not been there.
  virtual absl::Status RunStep(const StepRequest& request, StepResult* result) = 0;

  virtual void EndSession(SessionId session) = 0;
  virtual KvPool kv_pool() const = 0;
};

}  // namespace moebius
