// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/shard.h"

#include <algorithm>

namespace moebius {
namespace {

void Append(const RoleRows& from, int64_t step_row, OwnedRows& owned) {
  const bool continues = !owned.rows.empty() &&
                         owned.rows.back().session_index == from.session_index &&
                         owned.rows.back().role == from.role &&
                         owned.rows.back().position_end() == from.position_begin;
  if (continues) {
    owned.rows.back().num_rows += from.num_rows;
  } else {
    owned.rows.push_back(from);
    owned.rows.back().row_begin = owned.num_rows;
  }
  if (!owned.step_rows.empty() && owned.step_rows.back().end == step_row) {
    owned.step_rows.back().end += from.num_rows;
  } else {
    owned.step_rows.push_back({step_row, step_row + from.num_rows});
  }
  owned.num_rows += from.num_rows;
}

}  // namespace

int64_t NumOwnedSpans(SpanRange spans, int32_t first_rank, Shard shard) {
  // Each 2N spans hold two of every rank.
  const int64_t period = 2 * int64_t{shard.num_ranks};
  const auto count_before = [&](int64_t end) {
    int64_t count = end / period * 2;
    for (int64_t span = end / period * period; span < end; ++span) {
      if (SpanOwner(span, first_rank, shard.num_ranks) == shard.rank) ++count;
    }
    return count;
  };
  return count_before(spans.end) - count_before(spans.begin);
}

int64_t NumStatesOf(const SessionSpans& spans, SpanRange range, int32_t first_rank, Shard shard) {
  if (spans.is_canonical()) return NumOwnedSpans(range, first_rank, shard);
  for (int64_t span = range.begin; span < range.end; ++span) {
    const bool is_owned = SpanOwner(span, first_rank, shard.num_ranks) == shard.rank;
    if (is_owned && !spans.SpanPositions(span).empty()) return 1;
  }
  return 0;
}

OwnedRows OwnedRowsOf(const StepPlan& plan, const SpanGeometry& geometry, Shard shard) {
  OwnedRows owned;
  FillOwnedRows(plan, geometry, shard, owned);
  return owned;
}

void FillOwnedRows(const StepPlan& plan, const SpanGeometry& geometry, Shard shard,
                   OwnedRows& owned) {
  owned.rows.clear();
  owned.step_rows.clear();
  owned.num_rows = 0;
  for (size_t i = 0; i < plan.sessions.size(); ++i) {
    for (const RoleRows& rows : CutByRole(plan.sessions[i], static_cast<int32_t>(i))) {
      const SessionSpans spans = SpansOf(rows, geometry);
      for (int64_t position = rows.position_begin; position < rows.position_end();) {
        const int64_t span = spans.SpanOf(position);
        const int64_t end = std::min(rows.position_end(), spans.SpanPositions(span).end);
        if (SpanOwner(span, rows.first_rank, shard.num_ranks) == shard.rank) {
          RoleRows part = rows;
          part.position_begin = position;
          part.num_rows = end - position;
          Append(part, rows.row_begin + (position - rows.position_begin), owned);
        }
        position = end;
      }
    }
  }
}

std::vector<int64_t> ForeignSpansOf(absl::Span<const RoleRows> rows, const SpanGeometry& geometry,
                                    KeyWindow window, Shard shard) {
  std::vector<int64_t> foreign;
  FillForeignSpans(rows, geometry, window, shard, foreign);
  return foreign;
}

void FillForeignSpans(absl::Span<const RoleRows> rows, const SpanGeometry& geometry,
                      KeyWindow window, Shard shard, std::vector<int64_t>& foreign) {
  foreign.clear();
  int64_t next = 0;  // spans before it are decided
  for (const RoleRows& part : rows) {
    const SpanRange seen = SeenSpansOf(part, geometry, window);
    const SessionSpans spans = SpansOf(part, geometry);
    for (int64_t span = std::max(next, seen.begin); span < seen.end; ++span) {
      const bool is_owned = SpanOwner(span, part.first_rank, shard.num_ranks) == shard.rank;
      if (!is_owned && !spans.SpanPositions(span).empty()) foreign.push_back(span);
    }
    next = std::max(next, seen.end);
  }
}

}  // namespace moebius
