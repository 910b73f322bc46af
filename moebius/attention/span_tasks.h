// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "moebius/attention/head_map.h"
#include "moebius/attention/session_spans.h"
#include "moebius/attention/span.h"
#include "moebius/attention/step_plan.h"

namespace moebius {

/// What a token was when the request came: it never changes and decides MLA's form.
enum class TokenRole { kPrompt, kGenerated };

/// Consecutive rows of one session that have one role.
struct RoleRows {
  int32_t session_index = 0;  // into StepPlan::sessions
  TokenRole role = TokenRole::kPrompt;
  int64_t row_begin = 0;  // in the step's row batch
  int64_t num_rows = 0;
  int64_t position_begin = 0;
  // Of the session.
  int64_t prompt_length = 0;
  int32_t first_rank = 0;

  int64_t position_end() const { return position_begin + num_rows; }
};

/// Cuts the rows of a step's session by role, in the order of rows: no, one or two pieces.
/// `session_index`: into StepPlan::sessions.
absl::InlinedVector<RoleRows, 2> CutByRole(const SessionRows& session, int32_t session_index);

/// The spans of the rows' session.
inline SessionSpans SpansOf(const RoleRows& rows, const SpanGeometry& geometry) {
  return {geometry, rows.prompt_length};
}

/// Whether a state of the rows over several spans is a fold of one for each segment.
inline bool IsSegmented(const RoleRows& rows, const SpanGeometry& geometry) {
  return !geometry.is_canonical() && rows.role == TokenRole::kGenerated;
}

/// Spans [begin, end) of which some of the rows see a key.
struct SpanRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool contains(int64_t span) const { return begin <= span && span < end; }
  friend bool operator==(const SpanRange&, const SpanRange&) = default;
};
SpanRange SeenSpansOf(const RoleRows& rows, const SpanGeometry& geometry, KeyWindow window);

/// The states (acc, m, l) that somebody computes together: those of every query head of one key
/// group, for rows [row_begin, row_begin + num_rows) of one RoleRows, over each of the spans
/// [span_begin, span_end). A row has a state in a span iff it sees a key there.
struct SpanTask {
  int32_t rows_index = 0;  // into the rows of the step
  int32_t key_group = 0;   // KV head; 0 where all heads share the keys
  HeadRange heads;         // those of the key group's query heads; empty: all of them
  int64_t row_begin = 0;   // relative to RoleRows::row_begin
  int64_t num_rows = 0;
  int64_t span_begin = 0;
  int64_t span_end = 0;
  int32_t owner = -1;  // per-degree: only spans of this rank; -1: all
  /// True when the task has all the spans that its rows see, and so folds and finishes them. Else
  /// somebody folds the states of all spans in ascending order. The same for all tasks of a
  /// RoleRows.
  bool finishes = true;
  /// Of a task that does not finish: where, among the states of a row and head, the first one goes.
  /// The states of a RoleRows begin with its first seen span.
  int64_t slot_begin = 0;
};

/// The parts of a task of segmented rows, one for each segment that it reaches, ascending. They
/// finish nothing: each makes the state (segment − first_segment) of its rows. Pure.
void AppendSegmentTasks(const SpanTask& task, const SessionSpans& spans, int64_t first_segment,
                        std::vector<SpanTask>& tasks);

/// How work may be cut. It decides who computes a state and never which bits it has.
struct SpanTaskLimits {
  int32_t num_key_groups = 1;
  int64_t tile_rows = 32;      // rows of a task, at most
  int64_t split_rows = 4;      // RoleRows with more rows keep all spans of a row in one task
  int64_t max_task_spans = 1;  // spans of a task of others
};

/// The tasks for one RoleRows: together they hold every (row, key group, span) state once, and no
/// span that no row of a task sees. Heaviest (latest positions) first. Pure.
void AppendSpanTasks(const RoleRows& rows, int32_t rows_index, const SpanGeometry& geometry,
                     KeyWindow window, const SpanTaskLimits& limits, std::vector<SpanTask>& tasks);

}  // namespace moebius
