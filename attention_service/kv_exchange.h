// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/attention/head_map.h"
#include "moebius/attention/step_plan.h"
#include "moebius/tensor/rows.h"
#include "moebius/wire/exchange_codec.h"

// The seam between the attention of one rank and the other ranks: what each method (ring, pass-Q,
// Ulysses, 2-D) needs of others, asked for by name and folded in ascending order. How it travels is
// behind the seam and changes no bit.

namespace moebius {

/// A foreign span that rows which this rank computes see.
struct KvSpanNeed {
  int32_t holder = 0;         // rank
  int32_t session_index = 0;  // into the plan
  int64_t span = 0;
};

/// Rows of this rank, and how many states of each `holder` has over earlier spans (NumStatesOf).
struct StateNeed {
  int32_t holder = 0;
  int32_t session_index = 0;
  int64_t position_begin = 0;
  int64_t row_begin = 0;  // in the queries that are handed over with the need
  int64_t num_rows = 0;
  int64_t num_spans = 0;
};

/// Some heads of rows that another rank of this one's group has (head_groups.h).
struct HeadNeed {
  int32_t holder = 0;  // rank
  HeadRange heads;
  int64_t num_rows = 0;
};

/// What a rank answers to others about the open step. Called from the exchange's threads, never
/// from an executor, between KvExchange::BeginStep and the return of EndStep.
class KvHolder {
 public:
  virtual ~KvHolder() = default;
  /// Rows [Σ over spans of their positions after the step, KV row width] of spans that this rank
  /// owns.
  virtual absl::StatusOr<SharedBytes> ReadSpans(int64_t layer, const KvRequest& request) = 0;
  /// States [Σ over parts of rows · heads · owned spans before the part's own span,
  /// v_head_dim + 2], in this order: (acc, m, l). Under the per-degree sum one for all owned spans
  /// before it that have keys, if there are any, of v_head_dim + 1: (o, lse), normalised. `queries`
  /// [Σ rows, heads · head size]. Runs on the executor.
  virtual absl::StatusOr<SharedBytes> ComputeStates(int64_t layer,
                                                    absl::Span<const QueriedRows> parts,
                                                    Bf16Rows queries) = 0;
  /// Rows [rows, heads · head size or v head size] of what PublishHeads said is there.
  virtual absl::StatusOr<SharedBytes> ReadHeads(int64_t layer, const HeadRequest& request) = 0;
};

/// A way to the other ranks' keys and values. One step at a time; its calls come from the one
/// thread that runs steps, in this order:
///   BeginStep ▸ (CloseHeads, Publish…, Ask… and Await… of a layer)… ▸ EndStep.
///
/// Invariants:
/// 1. An Ask waits for no answer; each Await belongs to the Ask with the same kind, layer and
/// round.
/// 2. At most two rounds of one kind are under way.
/// 3. While an Await waits this rank answers others. In a layer everybody publishes keys and
///    queries before waiting for any, and outputs before waiting for outputs, so waits never go
///    round in a circle.
/// 4. A wait ends: with what was asked for, or with UNAVAILABLE naming the rank that died, the
///    failure that the rank answered, DEADLINE_EXCEEDED, or CANCELLED.
class KvExchange {
 public:
  virtual ~KvExchange() = default;

  /// Who answers here. Null: nobody, and no call is running any more when this returns.
  virtual void Attach(KvHolder* holder) = 0;

  virtual void BeginStep(const StepPlan& plan) = 0;
  /// The step cannot be run here: those who ask for it hear `status`.
  virtual void RefuseStep(const StepPlan& plan, const absl::Status& status) = 0;
  /// This rank's own keys and values of `layer` are stored.
  virtual void Publish(int64_t layer) = 0;
  /// Others may read these heads of `layer` from now on, until CloseHeads or EndStep.
  virtual void PublishHeads(int64_t layer, HeadPhase phase) = 0;
  /// When it returns nobody reads heads any more. Every rank has run the layer before: whoever
  /// gives out layers has all its rows.
  virtual void CloseHeads() = 0;
  /// Forgets the step and what is under way. When it returns no call to the holder runs.
  virtual void EndStep() = 0;

  virtual absl::Status AskSpans(int64_t layer, uint32_t round, absl::Span<const KvSpanNeed> needs,
                                HeadRange kv_heads) = 0;
  /// Makes `rows` of each need: [the span's positions after the step, KV row width].
  virtual absl::Status AwaitSpans(int64_t layer, uint32_t round,
                                  std::vector<ReceivedRows>& rows) = 0;

  /// `queries` [rows, heads · head size] stay as they are until the Await.
  virtual absl::Status AskStates(int64_t layer, uint32_t round, absl::Span<const StateNeed> needs,
                                 Bf16Rows queries) = 0;
  /// Makes `states` of each need: [rows · heads · spans, v_head_dim + 2 or + 1], as
  /// KvHolder::ComputeStates orders them.
  virtual absl::Status AwaitStates(int64_t layer, uint32_t round,
                                   std::vector<ReceivedStates>& states) = 0;

  virtual absl::Status AskHeads(int64_t layer, HeadPhase phase,
                                absl::Span<const HeadNeed> needs) = 0;
  /// Makes `rows` of each need: [rows, heads · head size or v head size].
  virtual absl::Status AwaitHeads(int64_t layer, HeadPhase phase,
                                  std::vector<ReceivedRows>& rows) = 0;
};

/// Counts of one rank since its start.
struct ShardFigures {
  /// Sessions of steps whose prompt rows were shared, by method.
  std::array<int64_t, kNumAttentionMethods> methods = {};
  int64_t rounds = 0;              // of spans
  double round_seconds = 0;        // of these, waiting included
  int64_t spans_received = 0;      // per layer
  int64_t states_received = 0;     // per row, head, span and layer
  int64_t max_foreign_spans = 0;   // most that were held or under way at one time
  int64_t head_rows_received = 0;  // per layer: queries and outputs of some heads
  double wait_seconds = 0;         // of steps, for other ranks: what the overlap did not hide
};

}  // namespace moebius
