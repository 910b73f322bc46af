// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/attention/session_spans.h"
#include "moebius/attention/span.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/attention/step_plan.h"

namespace moebius {

/// One of the ranks that share the attention of every session. Rank and number decide who computes
/// what, never which bits it has.
struct Shard {
  int32_t rank = 0;
  int32_t num_ranks = 1;

  bool is_alone() const { return num_ranks == 1; }
};

/// The rank that owns a span of a session: it keeps the span's keys and computes its rows.
/// `first_rank` (SessionRows) turns the rule, so that short sessions spread over the ranks.
inline int32_t SpanOwner(int64_t span, int32_t first_rank, int32_t num_ranks) {
  return static_cast<int32_t>((OwnerOfSpan(span, num_ranks) + first_rank) % num_ranks);
}

/// How many of a session's `spans` a rank owns.
int64_t NumOwnedSpans(SpanRange spans, int32_t first_rank, Shard shard);

/// How many states of one row and head a rank makes over its spans of `range`, all of whose keys
/// the row sees or some: one for each span, or one for all of them (per-degree; none where they are
/// empty).
int64_t NumStatesOf(const SessionSpans& spans, SpanRange range, int32_t first_rank, Shard shard);

/// A half-open range of a step's rows.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// The rows of a step that one rank owns, in the order of the step.
struct OwnedRows {
  /// Consecutive rows of one session and one role in spans of this rank. row_begin counts the
  /// rank's own rows: it indexes the batch that the rank is given.
  std::vector<RoleRows> rows;
  std::vector<RowRange> step_rows;  // the same rows in the step's batch, ascending, joined
  int64_t num_rows = 0;
};

/// Each row of the step is owned by exactly one of the ranks. Pure.
OwnedRows OwnedRowsOf(const StepPlan& plan, const SpanGeometry& geometry, Shard shard);
/// The same into `owned`; allocates only while that grows.
void FillOwnedRows(const StepPlan& plan, const SpanGeometry& geometry, Shard shard,
                   OwnedRows& owned);

/// The spans of one session that a rank needs of others for `rows`: those that it does not own and
/// of which some of the rows see a key, ascending. `rows` are of one session and ascend by
/// position. Pure.
std::vector<int64_t> ForeignSpansOf(absl::Span<const RoleRows> rows, const SpanGeometry& geometry,
                                    KeyWindow window, Shard shard);
/// The same into `foreign`; allocates only while that grows.
void FillForeignSpans(absl::Span<const RoleRows> rows, const SpanGeometry& geometry,
                      KeyWindow window, Shard shard, std::vector<int64_t>& foreign);

}  // namespace moebius
