// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "moebius/api/generate.h"
#include "moebius/attention/step_plan.h"
#include "moebius/routing/capacity.h"
#include "router_service/ports.h"

namespace moebius {

/// What a step says of the rows of one session.
struct RowsOutcome {
  /// OK, or why the session's request ends: INVALID_ARGUMENT for values that are not finite,
  /// RESOURCE_EXHAUSTED where a capacity rejected a row. Names the position.
  absl::Status failure;
  RowEffects effects;
};

/// Pure.
RowsOutcome OutcomeOf(const StepResult& result, const SessionRows& rows);

/// The failure of a row that a capacity rejected, `what` names it: "position 7", "row 3".
absl::Status RejectedByCapacity(const RejectedRow& rejected, absl::string_view what);

/// What an answer says of what happened to its rows; exact where nothing did. `per_degree_ranks`:
/// attention ranks of the per-degree sum, whose bits depend on them; 0: the sum is canonical. Pure.
Exactness DescribeExactness(const RowEffects& effects, const CapacityPolicy& capacity,
                            int32_t per_degree_ranks = 0);

}  // namespace moebius
