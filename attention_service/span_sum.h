// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "attention_service/attention_weights.h"
#include "attention_service/kv_cache.h"
#include "attention_service/packed_attention.h"
#include "attention_service/span_task_runner.h"
#include "moebius/attention/span.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/attention/step_plan.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// From a layer's queries and the KV cache to its attention output: plans who computes which span
/// states, runs that over the executor, folds the states in ascending order. Which thread computes
/// a state and how tasks are cut changes no bit.
/// Not thread-safe; runs on the executor.
class SpanSum {
 public:
  SpanSum(const AttentionFacts& facts, const KvLayout& layout, const Kernels& kernels,
          Executor& executor);

  /// Plans the tasks of the step, the same for every layer.
  void BeginStep(const StepPlan& plan);

  /// `queries` [num_rows, heads * qk_head_dim], rotated; the keys of the step's rows are in
  /// `cache`. `out` [num_rows, heads * v_head_dim]: bf16(acc / l).
  void Run(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows queries,
           const KvCache& cache, MutableBf16Rows out);

 private:
  // Where the states of rows lie whose tasks did not see all spans: per (row, head) its spans
  // ascending. num_spans 0: not split.
  struct SplitRows {
    int64_t slot_begin = 0;
    int64_t num_spans = 0;
  };

  AttentionForm FormOf(const RoleRows& rows) const;
  int32_t NumKeyGroups(AttentionForm form) const;
  int64_t TileRows(const RoleRows& rows, AttentionForm form) const;
  void AbsorbQueries(const PackedAttentionLayer& weights, Bf16Rows queries);
  void FoldSplitRows(MutableBf16Rows out);
  void FoldSplitRow(size_t rows_index, int64_t row_and_head, MutableBf16Rows out);

  AttentionFacts facts_;
  SpanGeometry geometry_;
  const Kernels& kernels_;
  Executor& executor_;
  bool is_latent_;

  std::vector<RoleRows> rows_;
  std::vector<SpanTask> tasks_;
  std::vector<int64_t> absorbed_begin_;  // per RoleRows: its first row in absorbed_, else -1
  std::vector<SplitRows> split_;         // per RoleRows
  int64_t num_absorbed_rows_ = 0;
  RowBatch<Bf16> absorbed_;  // [absorbed rows * heads, rank + rope]
  RowBatch<float> slot_acc_;
  std::vector<float> slot_m_, slot_l_;
  std::vector<SpanTaskRunner> runners_;  // one per thread
};

}  // namespace moebius
