// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

#include "attention_service/attention_weights.h"
#include "attention_service/packed_attention.h"
#include "attention_service/span_task_runner.h"
#include "moebius/attention/merge.h"
#include "moebius/attention/span.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// Rows whose span states are computed together, and what their tasks read: from a step's queries,
/// or under MLA for generated rows from the absorbed ones.
struct QueryRows {
  std::vector<RoleRows> rows;
  std::vector<int64_t> absorbed_begin;  // per RoleRows: its first row in `absorbed`, else -1
  int64_t num_absorbed_rows = 0;
  RowBatch<Bf16> absorbed;  // [absorbed rows * heads, rank + rope]
};

/// Span states that several tasks store and one fold reads: per (row, head) num_spans of them,
/// ascending.
struct StateSlots {
  RowBatch<float> acc;  // [slots, v_head_dim]
  std::vector<float> m, l;

  void Reset(int64_t num_slots, int64_t width) {
    acc.Reset(num_slots, width);
    m.resize(static_cast<size_t>(num_slots));
    l.resize(static_cast<size_t>(num_slots));
  }
};

/// How tasks over spans are cut and run on this process's executor. Which thread computes a state
/// and how tasks are cut changes no bit.
/// Its scratch is the executor's: calls come from inside bodies of the executor, which never
/// overlap.
class SpanCompute {
 public:
  SpanCompute(const AttentionFacts& facts, const SpanGeometry& geometry, const KvLayout& layout,
              const Kernels& kernels, Executor& executor);

  const AttentionFacts& facts() const { return facts_; }
  const SpanGeometry& geometry() const { return geometry_; }
  Executor& executor() { return executor_; }
  int64_t num_heads() const { return facts_.config.num_query_heads; }

  AttentionForm FormOf(const RoleRows& rows) const;
  int32_t NumKeyGroups(AttentionForm form) const;
  int64_t TileRows(const RoleRows& rows, AttentionForm form) const;

  /// Makes `out` of `rows` and finds which of them are absorbed.
  void SetRows(absl::Span<const RoleRows> rows, QueryRows& out) const;
  /// Makes the absorbed queries of a layer. `queries` is what the rows' row_begin index.
  void Absorb(const PackedAttentionLayer& weights, Bf16Rows queries, QueryRows& rows);

  /// What the tasks of a layer share.
  struct Layer {
    const PackedAttentionLayer* weights = nullptr;
    KvView kv;
    KeyWindow window;
    Bf16Rows queries;  // [rows, heads * qk_head_dim]
  };
  /// Runs tasks over `rows`; output_of gives where a task's results go. Where tasks are fewer than
  /// threads could do, those of few segmented rows (IsSegmented) are cut into their segments.
  void Run(absl::Span<const SpanTask> tasks, const QueryRows& rows, const Layer& layer,
           absl::FunctionRef<SpanTaskOutput(const SpanTask&)> output_of);

  /// The states of one row and head among StateSlots: `slot` is that of `first_span`, which is at
  /// or before the first span that the row sees.
  struct RowStates {
    int64_t slot = 0;
    int64_t first_span = 0;
    PositionRange keys;  // that the row sees
  };
  /// bf16(acc / l) of one row and head: the fold of its states, into `out` [v_head_dim].
  void FoldSlots(StateSlots& slots, const RowStates& row, absl::Span<Bf16> out) const;

 private:
  // Where the segments' states of rows begin, and which segments their tasks see.
  struct SegmentSlots {
    int64_t begin = 0;
    int64_t first_segment = 0;
    int64_t end_segment = 0;
    int64_t size() const { return end_segment - first_segment; }
  };
  void CutSegments(absl::Span<const SpanTask> tasks, const QueryRows& rows);
  SpanTaskOutput SegmentOutput(const SpanTask& task, const QueryRows& rows);
  void FoldSegments(const SpanTask& task, const QueryRows& rows, const SpanTaskOutput& output);
  HeadRange HeadsOf(const SpanTask& task, AttentionForm form) const;

  AttentionFacts facts_;
  SpanGeometry geometry_;
  const Kernels& kernels_;
  Executor& executor_;
  bool is_latent_;
  std::vector<SpanTaskRunner> runners_;  // one per thread
  // Of the tasks that run: what a thread does at a time, tasks or segments of them, by task; and of
  // each RoleRows the states of its segments.
  std::vector<SpanTask> pieces_;
  std::vector<size_t> piece_task_;  // index of its task
  std::vector<SegmentSlots> segment_slots_;
  StateSlots segments_;
  std::vector<int64_t> segment_keys_;  // per slot: keys of its row in the segment
};

}  // namespace moebius
