// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "attention_service/kv_exchange.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/step_plan.h"
#include "moebius/base/executor.h"
#include "moebius/base/strong_id.h"
#include "moebius/tensor/rows.h"

namespace moebius {

class Checkpoint;
class PackedCache;
struct AttentionFacts;
struct AttentionLayerWeights;
struct Kernels;
struct WeightLoadFigures;

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

/// Which part of the sessions' spans a pipeline owns, and how it reaches the others. A rank alone
/// has no exchange; it outlives the pipeline.
struct Sharding {
  Shard shard;
  KvExchange* exchange = nullptr;
};

/// How Load loads.
struct AttentionLoadOptions {
  PackedCache* cache = nullptr;  // null: none
  /// After each part: bytes so far, and in all. On the caller's thread.
  std::function<void(int64_t loaded_bytes, int64_t total_bytes)> on_loaded;
};

/// The attention of every layer with its projections and KV cache: bf16 normed rows in, bf16 rows
/// for the residual out. One of N ranks, N >= 1: each keeps the KV of the spans that it owns and
/// computes the rows in them; all ranks are given the whole plan of every step.
///
/// Life of a step: BeginStep, then RunLayer once for each layer, then CommitStep or AbortStep.
/// Invariants:
/// 1. A session's length moves at CommitStep only; a step may start at any position <= length, and
///    what lies beyond it is overwritten (a retry, or a part computed again after a loss).
/// 2. The bits of a row depend on its session's rows at positions up to its own and on nothing
///    else: not on batch-mates, chunking, threads, tier or the number of ranks.
/// 3. Blocks are reserved in BeginStep for the whole step; RunLayer allocates no KV.
///
/// Not thread-safe, save `usage`: one step at a time, from one caller. Work runs on the executor.
class AttentionPipeline {
 public:
  /// Reads and packs the attention weights of all layers, or takes them from a cache, on as many
  /// threads as the executor has. `kernels` and `executor` must outlive the
  /// pipeline. RESOURCE_EXHAUSTED when the budget holds no block (with the bytes of one),
  /// INVALID_ARGUMENT when the model has a shape that the kernels do not compute.
  static absl::StatusOr<std::unique_ptr<AttentionPipeline>> Load(
      const Checkpoint& checkpoint, const Kernels& kernels, Executor& executor,
      int64_t kv_budget_bytes, const Sharding& sharding = {},
      const AttentionLoadOptions& options = {});
  /// The same from any source of weights (attention_weights.h).
  static absl::StatusOr<std::unique_ptr<AttentionPipeline>> Make(
      const AttentionFacts& facts, AttentionLayerSource source, const Kernels& kernels,
      Executor& executor, int64_t kv_budget_bytes, const Sharding& sharding = {});
  /// A stand-in for measuring everything but attention: no weights, KV counted and never written;
  /// the rows of each layer are answered with zeros after `delay`. All ranks of a group are one.
  static absl::StatusOr<std::unique_ptr<AttentionPipeline>> MakeMock(
      const AttentionFacts& facts, absl::Duration delay, const Kernels& kernels, Executor& executor,
      int64_t kv_budget_bytes, const Shard& shard);
  /// What Load would say of the budget and the shape, before any weight is read.
  static absl::Status CheckKvBudget(const AttentionFacts& facts, const Kernels& kernels,
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

  /// One layer for the rows of the open step that this rank owns (OwnedRowsOf), which are all rows
  /// of a rank alone. `normed` [own rows, hidden_size] after the input norm; `out` [own rows,
  /// hidden_size], the O projection rounded to bf16. A rank without rows runs it too where its
  /// group shares heads (TakesPart). Layers may come in any order, and again where the rank is
  /// alone. FAILED_PRECONDITION without an open step; INVALID_ARGUMENT for shapes; what a wait for
  /// other ranks ended with (KvExchange). A failure leaves the step open.
  absl::Status RunLayer(int64_t layer, Bf16Rows normed, MutableBf16Rows out);

  /// Makes the step's positions part of their sessions. FAILED_PRECONDITION without an open step.
  absl::Status CommitStep();
  /// Forgets the open step and gives its reservations back; sessions that it created are gone. No
  /// open step: nothing happens.
  void AbortStep();
  /// Frees a session's KV; aborts the open step if the session has rows in it. Unknown: nothing
  /// happens.
  void EndSession(SessionId session);

  /// Rows of the open step that this rank owns.
  int64_t num_own_rows() const;
  bool has_open_step() const;
  /// True while a step is open in which no layer waits for other ranks or reads more than is brief
  /// (moebius/base/brief_work.h), here or in what others ask this rank for.
  bool is_brief() const;
  /// Committed positions of a session; 0 when unknown.
  int64_t SessionLength(SessionId session) const;
  /// Thread-safe.
  KvUsage usage() const;
  ShardFigures shard_figures() const;
  /// Bytes of the packed weights.
  int64_t weight_bytes() const;
  /// How the weights came; empty unless by Load.
  const WeightLoadFigures& load_figures() const;

 private:
  class Impl;
  explicit AttentionPipeline(std::unique_ptr<Impl> impl);
  static absl::StatusOr<std::unique_ptr<Impl>> MakeImpl(const AttentionFacts& facts,
                                                        const Kernels& kernels, Executor& executor,
                                                        int64_t kv_budget_bytes,
                                                        const Sharding& sharding);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
