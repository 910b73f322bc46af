// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"

#include "moebius/placement/balance.h"

namespace moebius {

/// Plans one layer so that its heaviest device is as light as this search finds: replica counts by
/// CountReplicas, placed by descending load on the lightest device with room, then improved change
/// by change (layer_balancer.h). Any counts and capacities; never two replicas of an expert on one
/// device, so slots may stay empty.
///
/// Where groups and nodes are given, a plan that keeps every group on one node is preferred (a row
/// then reaches no more nodes than groups) as long as its heaviest device is at most
/// kNodeLimitCost above the best plan without that rule, and no heavier than what PlanEplb gives.
/// The result is never heavier than PlanEplb's where that has distinct devices.
///
/// Pure and deterministic. INVALID_ARGUMENT as ValidateBalanceProblem.
absl::StatusOr<BalancedLayer> PlanBalanced(const BalanceProblem& problem);

/// What keeping groups on nodes may cost, as a part of the heaviest device's load.
inline constexpr double kNodeLimitCost = 0.02;

/// Whether every group's replicas are on devices of one node.
bool KeepsNodeLimit(const BalanceProblem& problem, const BalancedLayer& layer);

}  // namespace moebius
