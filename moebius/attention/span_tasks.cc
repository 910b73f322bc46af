// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/span_tasks.h"

#include <algorithm>

namespace moebius {

absl::InlinedVector<RoleRows, 2> CutByRole(const SessionRows& session, int32_t session_index) {
  absl::InlinedVector<RoleRows, 2> cut;
  const int64_t prompt_rows =
      std::clamp<int64_t>(session.prompt_length - session.position_begin, 0, session.num_rows);
  if (prompt_rows > 0) {
    cut.push_back({.session_index = session_index,
                   .role = TokenRole::kPrompt,
                   .row_begin = session.row_begin,
                   .num_rows = prompt_rows,
                   .position_begin = session.position_begin,
                   .prompt_length = session.prompt_length,
                   .first_rank = session.first_rank});
  }
  if (prompt_rows < session.num_rows) {
    cut.push_back({.session_index = session_index,
                   .role = TokenRole::kGenerated,
                   .row_begin = session.row_begin + prompt_rows,
                   .num_rows = session.num_rows - prompt_rows,
                   .position_begin = session.position_begin + prompt_rows,
                   .prompt_length = session.prompt_length,
                   .first_rank = session.first_rank});
  }
  return cut;
}

SpanRange SeenSpansOf(const RoleRows& rows, const SpanGeometry& geometry, KeyWindow window) {
  const SessionSpans spans = SpansOf(rows, geometry);
  return {spans.FirstSpan(rows.position_begin, window),
          spans.NumSpans(spans.KeyEnd(rows.position_end() - 1))};
}

void AppendSpanTasks(const RoleRows& rows, int32_t rows_index, const SpanGeometry& geometry,
                     KeyWindow window, const SpanTaskLimits& limits, std::vector<SpanTask>& tasks) {
  MOEBIUS_CHECK(limits.tile_rows >= 1 && limits.num_key_groups >= 1);
  const int64_t num_tiles = (rows.num_rows + limits.tile_rows - 1) / limits.tile_rows;
  const SpanRange seen = SeenSpansOf(rows, geometry, window);
  const bool split = rows.num_rows <= limits.split_rows && seen.size() > limits.max_task_spans;
  for (int64_t tile = num_tiles - 1; tile >= 0; --tile) {
    RoleRows part = rows;
    part.num_rows = std::min(limits.tile_rows, rows.num_rows - tile * limits.tile_rows);
    part.position_begin += tile * limits.tile_rows;
    const SpanRange spans = SeenSpansOf(part, geometry, window);
    const int64_t step = split ? std::max<int64_t>(limits.max_task_spans, 1) : spans.size();
    for (int32_t group = 0; group < limits.num_key_groups; ++group) {
      for (int64_t span = spans.begin; span < spans.end; span += step) {
        tasks.push_back({.rows_index = rows_index,
                         .key_group = group,
                         .row_begin = tile * limits.tile_rows,
                         .num_rows = part.num_rows,
                         .span_begin = span,
                         .span_end = std::min(span + step, spans.end),
                         .finishes = !split,
                         .slot_begin = span - seen.begin});
      }
    }
  }
}

void AppendSegmentTasks(const SpanTask& task, const SessionSpans& spans, int64_t first_segment,
                        std::vector<SpanTask>& tasks) {
  for (int64_t begin = task.span_begin; begin < task.span_end;) {
    const int64_t segment = spans.SegmentOf(begin);
    int64_t end = begin + 1;
    while (end < task.span_end && spans.SegmentOf(end) == segment) ++end;
    SpanTask part = task;
    part.span_begin = begin;
    part.span_end = end;
    part.finishes = false;
    part.slot_begin = segment - first_segment;
    tasks.push_back(part);
    begin = end;
  }
}

}  // namespace moebius
