// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/attention/head_map.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/span.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/attention/step_plan.h"

// Ulysses and 2-D: N ranks in groups of U consecutive ones. The rows that the ranks of a group own
// are computed by all of them, each some heads of every row. Pure.

namespace moebius {

/// True where the prompt rows of a session go by heads.
inline bool SharesHeads(const SessionRows& session) { return session.ulysses_ranks > 1; }

/// Ranks of a group in this step; 1 where no session shares heads.
int32_t UlyssesRanksOf(const StepPlan& plan);

/// The first rank of the group of `rank`.
inline int32_t FirstOfGroup(int32_t rank, int32_t ulysses_ranks) {
  return rank / ulysses_ranks * ulysses_ranks;
}

/// The rows of `shard` that its group computes by heads: consecutive rows of one session;
/// row_begin counts the rank's own rows (OwnedRowsOf).
std::vector<RoleRows> HeadRowsOf(const StepPlan& plan, const SpanGeometry& geometry, Shard shard);
/// The same of rows that are known to be the shard's, into `rows`; allocates only while that grows.
void FillHeadRows(const StepPlan& plan, const OwnedRows& owned, std::vector<RoleRows>& rows);

/// Whether a rank has a part in a layer of the step: rows of its own, or heads of its group's.
bool TakesPart(const StepPlan& plan, const SpanGeometry& geometry, Shard shard);

}  // namespace moebius
