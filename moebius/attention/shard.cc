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

int64_t NumOwnedSpans(int64_t span_end, int32_t first_rank, Shard shard) {
  // Each 2N spans hold two of every rank.
  const int64_t period = 2 * int64_t{shard.num_ranks};
  int64_t count = span_end / period * 2;
  for (int64_t span = span_end / period * period; span < span_end; ++span) {
    if (SpanOwner(span, first_rank, shard.num_ranks) == shard.rank) ++count;
  }
  return count;
}

OwnedRows OwnedRowsOf(const StepPlan& plan, const SpanGeometry& geometry, Shard shard) {
  OwnedRows owned;
  for (const RoleRows& rows : CutByRole(plan)) {
    const int32_t first_rank = plan.sessions[static_cast<size_t>(rows.session_index)].first_rank;
    for (int64_t position = rows.position_begin; position < rows.position_end();) {
      const int64_t span = geometry.SpanOf(position);
      const int64_t end = std::min(rows.position_end(), geometry.SpanPositions(span).end);
      if (SpanOwner(span, first_rank, shard.num_ranks) == shard.rank) {
        RoleRows part = rows;
        part.position_begin = position;
        part.num_rows = end - position;
        Append(part, rows.row_begin + (position - rows.position_begin), owned);
      }
      position = end;
    }
  }
  return owned;
}

}  // namespace moebius
