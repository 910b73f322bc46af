// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/placement/balance.h"

namespace moebius {

/// Replicas that devices have to load to come from `before` to `after`, of the same problem shape.
int64_t CountLoaded(const BalanceProblem& problem, const BalancedLayer& before,
                    const BalancedLayer& after);

/// A rebalance of several layers at once.
struct Rebalance {
  std::vector<BalancedLayer> layers;
  int64_t num_loaded = 0;  // replicas that devices have to load
  bool limited = false;    // the budget kept it from more
};

/// From where the replicas are to a plan that loads at most `max_loaded` of them. Takes the plans
/// of PlanBalanced, their devices renamed within nodes so that most stays where it is, if they fit;
/// else improves the layers from where they are, one change at a time, the layer with the largest
/// max/mean first. A layer is left as it is where a new plan would not improve it.
/// `before` has a valid answer with distinct devices for each of `problems`.
absl::StatusOr<Rebalance> PlanRebalance(absl::Span<const BalanceProblem> problems,
                                        absl::Span<const BalancedLayer> before, int64_t max_loaded);

}  // namespace moebius
