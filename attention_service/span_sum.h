// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "attention_service/span_compute.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// From queries to attention output for rows that see only spans of this rank: plans who computes
/// which span states, runs that over the executor, folds the states in ascending order.
/// Not thread-safe; runs on the executor.
class SpanSum {
 public:
  /// For layers with this window. Borrows `compute`.
  SpanSum(SpanCompute& compute, KeyWindow window) : compute_(compute), window_(window) {}

  /// Plans the tasks of the step, the same for every layer.
  void BeginStep(absl::Span<const RoleRows> rows);

  /// The keys of the step's rows are in the cache. `out` [rows, heads * v_head_dim]: bf16(acc / l)
  /// of this sum's rows; others are left alone.
  void Run(const SpanCompute::Layer& layer, MutableBf16Rows out);

 private:
  // Where the states of rows lie whose tasks did not see all spans. No spans: not split.
  struct SplitRows {
    int64_t slot_begin = 0;
    SpanRange spans;
  };

  void FoldSplitRows(MutableBf16Rows out);

  SpanCompute& compute_;
  const KeyWindow window_;
  QueryRows rows_;
  std::vector<SpanTask> tasks_;
  std::vector<SplitRows> split_;  // per RoleRows
  StateSlots slots_;
};

}  // namespace moebius
