// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "moebius/api/generate.h"
#include "moebius/attention/attention_layout.h"
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

/// The per-degree sum of attention, whose bits depend on all of this.
struct PerDegreeSum {
  int32_t num_ranks = 0;  // attention ranks; 0: the sum is canonical
  AttentionLayout layout = AttentionLayout::kZigzag;
};

/// What an answer says of what happened to its rows; exact where nothing did. Pure.
Exactness DescribeExactness(const RowEffects& effects, const CapacityPolicy& capacity,
                            const PerDegreeSum& per_degree = {});

}  // namespace moebius
