// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/attention/step_plan.h"
#include "moebius/base/executor.h"
#include "moebius/base/strong_id.h"
#include "moebius/tensor/rows.h"

namespace moebius {

class Checkpoint;
struct AttentionFacts;
struct AttentionLayerWeights;
struct Kernels;

/// Where a layer's weights come from; each layer is asked for once, ascending, and not kept.
using AttentionLayerSource =
    absl::FunctionRef<absl::StatusOr<AttentionLayerWeights>(int64_t layer)>;

/// Where the KV budget stands. Blocks are what is handed out: a block keeps `block_tokens`
/// positions of one session in all layers.
struct KvUsage {
  int64_t block_tokens = 0;
  int64_t block_bytes = 0;
  int64_t num_blocks = 0;   // budget / block_bytes
  int64_t used_blocks = 0;  // held by sessions, open reservations included
  int64_t num_sessions = 0;

  int64_t free_blocks() const { return num_blocks - used_blocks; }
  /// Blocks that a session of `num_tokens` positions holds.
  int64_t BlocksFor(int64_t num_tokens) const {
    return (num_tokens + block_tokens - 1) / block_tokens;
  }
  /// The longest session that fits an empty pool, in tokens.
  int64_t max_tokens() const { return num_blocks * block_tokens; }
};

/// The attention of every layer with its projections and KV cache: bf16 normed rows in, bf16 rows
/// for the residual out.
///
/// Life of a step: BeginStep, then RunLayer once for each layer, then CommitStep or AbortStep.
/// Invariants:
/// 1. A session's length moves at CommitStep only; a step may start at any position <= length, and
///    what lies beyond it is overwritten (a retry, or a part computed again after a loss).
/// 2. The bits of a row depend on its session's rows at positions up to its own and on nothing
///    else: not on batch-mates, chunking, threads or tier.
/// 3. Blocks are reserved in BeginStep for the whole step; RunLayer allocates no KV.
///
/// Not thread-safe, save `usage`: one step at a time, from one caller. Work runs on the executor.
class AttentionPipeline {
 public:
  /// Reads and packs the attention weights of all layers. `kernels` and `executor` must outlive the
  /// pipeline. INVALID_ARGUMENT when the budget holds no block (with the bytes of one), or the
  /// model has a shape that the kernels do not compute.
  static absl::StatusOr<std::unique_ptr<AttentionPipeline>> Load(const Checkpoint& checkpoint,
                                                                 const Kernels& kernels,
                                                                 Executor& executor,
                                                                 int64_t kv_budget_bytes);
  /// The same from any source of weights (attention_weights.h).
  static absl::StatusOr<std::unique_ptr<AttentionPipeline>> Make(const AttentionFacts& facts,
                                                                 AttentionLayerSource source,
                                                                 const Kernels& kernels,
                                                                 Executor& executor,
                                                                 int64_t kv_budget_bytes);
  ~AttentionPipeline();
  AttentionPipeline(const AttentionPipeline&) = delete;
  AttentionPipeline& operator=(const AttentionPipeline&) = delete;

  /// Opens a step and reserves its KV; sessions are created at their first rows (position 0). An
  /// open step is aborted first, so attempt n + 1 simply begins. On failure nothing is reserved, no
  /// step is open and sessions are as they were.
  /// RESOURCE_EXHAUSTED: more blocks needed than free; the message has both numbers, in tokens.
  /// FAILED_PRECONDITION: a session starts beyond its committed length. INVALID_ARGUMENT: plan.
  absl::Status BeginStep(const StepPlan& plan);

  /// One layer for all rows of the open step. `normed` [num_rows, hidden_size] after the input
  /// norm; `out` [num_rows, hidden_size], the O projection rounded to bf16. Layers may come in any
  /// order and again. FAILED_PRECONDITION without an open step; INVALID_ARGUMENT for shapes.
  absl::Status RunLayer(int64_t layer, Bf16Rows normed, MutableBf16Rows out);

  /// Makes the step's positions part of their sessions. FAILED_PRECONDITION without an open step.
  absl::Status CommitStep();
  /// Forgets the open step and gives its reservations back; sessions that it created are gone. No
  /// open step: nothing happens.
  void AbortStep();
  /// Frees a session's KV; aborts the open step if the session has rows in it. Unknown: nothing
  /// happens.
  void EndSession(SessionId session);

  /// Committed positions of a session; 0 when unknown.
  int64_t SessionLength(SessionId session) const;
  /// Thread-safe.
  KvUsage usage() const;
  /// Bytes of the packed weights.
  int64_t weight_bytes() const;

 private:
  class Impl;
  explicit AttentionPipeline(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
