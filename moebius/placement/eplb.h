// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"

#include "moebius/placement/balance.h"

namespace moebius {

/// The public expert-parallelism load balancer, slot for slot:
///
///   groups ─▶ nodes, by load, equally many each      (one group and one node where they do not
///   experts of a node ─▶ replicas, to the largest     divide)
///                        load per replica
///   replicas of a node ─▶ its devices, by load, equally many each
///
/// Packing takes items by descending load (stable) and puts each on the lightest pack that is not
/// full, the first among equals; where every pack gets one item, item i goes to pack i. It may put
/// two replicas of an expert on one device, and keeps groups on their nodes whatever that costs:
/// PlanBalanced (balanced_plan.h) does neither.
/// Source: DeepSeek-AI, "Expert Parallelism Load Balancer", github.com/deepseek-ai/EPLB, 2025.
///
/// INVALID_ARGUMENT as ValidateBalanceProblem; also devices with different numbers of slots, and
/// where groups are kept on nodes, groups that do not divide the experts or nodes that do not
/// divide the devices.
absl::StatusOr<BalancedLayer> PlanEplb(const BalanceProblem& problem);

}  // namespace moebius
