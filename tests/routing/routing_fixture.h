// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/base/random.h"
#include "moebius/kernels/kernels.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// A layer as the tests of the routing room vary it.
struct RoutingCase {
  LayerRule rule;
  Assignments assignments;
  int64_t hidden_size = 0;
};

/// The output of expert or slice `id` for a row: a number of its own for each (row, id, column), so
/// that anything taken from elsewhere changes a sum.
Bf16 ExpertOutput(int64_t row, int32_t id, int64_t column);

/// Assignments of distinct experts with random weights; one in `drop_one_in` is dropped and one row
/// in `refuse_one_in` is refused (0: none).
Assignments RandomAssignments(Random& random, int64_t num_rows, int32_t num_experts, int32_t top_k,
                              uint64_t drop_one_in, uint64_t refuse_one_in);

/// A placement with random services for every id, at most `max_replicas`.
Placement RandomPlacement(Random& random, const PlacementShape& shape, int32_t num_services,
                          int32_t max_replicas);

/// What expert services would reply to `plan`: ExpertOutput, and sums of it where joined.
std::vector<RowBatch<Bf16>> Replies(const DispatchPlan& plan, const Kernels& kernels,
                                    int64_t hidden_size);

/// Combine(plan, Replies(plan)).
RowBatch<Bf16> CombineReplies(const DispatchPlan& plan, const Kernels& kernels,
                              int64_t hidden_size);

/// The layer's output by docs/numerics.md, scalar by scalar, without plan or placement.
RowBatch<Bf16> ReferenceOutput(const RoutingCase& layer);

/// The bits of a batch, for comparisons that print.
std::vector<uint16_t> BitsOf(const RowBatch<Bf16>& rows);

}  // namespace moebius
