// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/head_groups.h"

#include <algorithm>

namespace moebius {

int32_t UlyssesRanksOf(const StepPlan& plan) {
  int32_t ulysses_ranks = 1;
  for (const SessionRows& session : plan.sessions) {
    ulysses_ranks = std::max(ulysses_ranks, session.ulysses_ranks);
  }
  return ulysses_ranks;
}

std::vector<RoleRows> HeadRowsOf(const StepPlan& plan, const SpanGeometry& geometry, Shard shard) {
  std::vector<RoleRows> rows;
  FillHeadRows(plan, OwnedRowsOf(plan, geometry, shard), rows);
  return rows;
}

void FillHeadRows(const StepPlan& plan, const OwnedRows& owned, std::vector<RoleRows>& rows) {
  rows.clear();
  for (const RoleRows& part : owned.rows) {
    const SessionRows& session = plan.sessions[static_cast<size_t>(part.session_index)];
    if (part.role == TokenRole::kPrompt && SharesHeads(session)) rows.push_back(part);
  }
}

bool TakesPart(const StepPlan& plan, const SpanGeometry& geometry, Shard shard) {
  if (OwnedRowsOf(plan, geometry, shard).num_rows > 0) return true;
  const int32_t ulysses_ranks = UlyssesRanksOf(plan);
  if (ulysses_ranks == 1) return false;
  const int32_t first = FirstOfGroup(shard.rank, ulysses_ranks);
  for (int32_t rank = first; rank < std::min(first + ulysses_ranks, shard.num_ranks); ++rank) {
    if (!HeadRowsOf(plan, geometry, {rank, shard.num_ranks}).empty()) return true;
  }
  return false;
}

}  // namespace moebius
