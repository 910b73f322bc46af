// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/kv_exchange.h"
#include "attention_service/shard_counters.h"
#include "attention_service/span_compute.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/step_plan.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// Rows that send their queries to the keys: generated rows, and prompt rows under pass-Q.
///
/// The queries go to the owners of earlier spans, one state of each (row, head, span) comes back,
/// and all are folded in ascending order: the bits of a rank that owns every span. Under the
/// per-degree sum one state of each (row, head) comes back from each owner, and they are folded in
/// the order of the owners. Spans that a row's window does not reach are not asked. Rows go in
/// batches, so that neither queries nor states of a message pass kMaxExchangeBytes; the next
/// batch's queries leave before this one is folded.
///
/// Not thread-safe. Start and Run are called off the executor and use it.
class StateSum {
 public:
  /// For layers with this window. Borrows `compute`, `exchange` and `counters`.
  StateSum(SpanCompute& compute, KeyWindow window, Shard shard, KvExchange& exchange,
           ShardCounters& counters)
      : compute_(compute),
        window_(window),
        shard_(shard),
        exchange_(exchange),
        counters_(counters) {}

  /// Plans the batches of `rows` of this rank. `plan` outlives the step.
  void BeginStep(const StepPlan& plan, const std::vector<RoleRows>& rows);
  bool is_empty() const { return num_batches_ == 0; }

  /// Sends the first batch's queries.
  absl::Status Start(const SpanCompute::Layer& layer) { return Ask(0, layer); }
  /// The outputs of the rows. After Start.
  absl::Status Run(const SpanCompute::Layer& layer, MutableBf16Rows out);

 private:
  struct Batch {
    std::vector<RoleRows> parts;      // the rows of each see from the same span on
    std::vector<int64_t> slot_begin;  // per part
    QueryRows rows;
    std::vector<StateNeed> needs;
    std::vector<SpanTask> tasks;  // over this rank's own spans
    // Per-degree, part by part: which ranks have a state of its rows, as OwnerOfSpan counts them,
    // ascending; and where those of each part end.
    std::vector<int64_t> owners;
    std::vector<size_t> owners_end;
    int64_t num_slots = 0;
    int64_t num_rows = 0;
  };

  void PlanBatches(RoleRows rows);
  void AddBatch();
  Batch& last() { return batches_[num_batches_ - 1]; }
  void FinishBatch(Batch& batch);
  absl::Status Ask(size_t index, const SpanCompute::Layer& layer);
  absl::Status RunBatch(size_t index, const SpanCompute::Layer& layer, MutableBf16Rows out);
  void Store(const Batch& batch);
  void Fold(const Batch& batch, MutableBf16Rows out);
  void FoldOwners(const Batch& batch, size_t part, int64_t row, absl::Span<Bf16> out);
  // As OwnerOfSpan counts it for the rows' session.
  int64_t OwnerOf(int32_t rank, const RoleRows& rows) const {
    return (rank + shard_.num_ranks - rows.first_rank % shard_.num_ranks) % shard_.num_ranks;
  }
  bool is_canonical() const { return compute_.geometry().is_canonical(); }
  // States of one row and head that have a place.
  int64_t NumSlots(const RoleRows& rows) const {
    return is_canonical() ? SeenSpans(rows).size() : shard_.num_ranks;
  }
  SpanRange SeenSpans(const RoleRows& rows) const {
    return SeenSpansOf(rows, compute_.geometry(), window_);
  }
  int64_t NumRowsFromOneSpan(const RoleRows& rows) const;

  SpanCompute& compute_;
  const KeyWindow window_;
  const Shard shard_;
  KvExchange& exchange_;
  ShardCounters& counters_;
  const StepPlan* plan_ = nullptr;
  // Of the step the first so many; more keep their memory for steps to come.
  std::vector<Batch> batches_;
  size_t num_batches_ = 0;
  // Of the batch that runs.
  StateSlots slots_;
  std::vector<ReceivedStates> received_;
  std::vector<std::pair<size_t, int64_t>> folded_;  // (part, row and head)
};

}  // namespace moebius
