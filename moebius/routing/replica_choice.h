// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/placement/placement.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

/// DispatchLimits::message_rows of experts with so many bytes of weights (at least 1), from what a
/// message costs both its ends and what a core reads meanwhile.
int32_t MessageRows(int64_t expert_bytes, int32_t balance_rows = DispatchLimits().balance_rows);

/// Which replica serves each id in one dispatch. One party decides, for all rows at once.
///
/// Ids are taken by descending number of rows, ties by lowest id. Each costs its service
/// max(balance_rows, rows): reading the weights, or the arithmetic. An id with n · balance_rows
/// rows may be spread over n of its replicas, else one serves it, so that its weights are read
/// once. The least loaded replicas are taken, where a service that nothing has been given yet
/// counts as loaded with message_rows; ties, while these are set, to the service that could serve
/// the most ids of the dispatch, then in the placement's order of preference.
///
/// Reused from plan to plan; not thread-safe.
class ReplicaChoice {
 public:
  /// `rows_of_id` [num_ids]: rows of each id among `num_rows`. UNAVAILABLE names ids with rows and
  /// without usable replica.
  absl::Status Choose(LayerId layer, const Placement& placement, const DispatchLimits& limits,
                      absl::Span<const int64_t> rows_of_id, int64_t num_rows);

  /// The service of `id` (which has rows) for one row. Spread ids are cut into equal ranges of
  /// rows, their services ascending, so that a row's experts meet where they share replicas.
  int32_t ServiceOf(int32_t id, int64_t row) const {
    const Replicas& replicas = replicas_of_id_[static_cast<size_t>(id)];
    const int64_t index = replicas.count == 1 ? 0 : row * replicas.count / num_rows_;
    return services_[static_cast<size_t>(replicas.begin + index)];
  }

 private:
  // [begin, begin + count) of services_.
  struct Replicas {
    int32_t begin = 0;
    int32_t count = 0;
  };
  void SortIdsByRows(absl::Span<const int64_t> rows_of_id);
  // Keeps some of the usable replicas of an id, which lie in services_ from `begin` to the end.
  Replicas Keep(int64_t rows, int32_t begin, const DispatchLimits& limits);
  void CountReach(LayerId layer, const Placement& placement, const DispatchLimits& limits);

  int64_t num_rows_ = 0;
  std::vector<Replicas> replicas_of_id_;
  std::vector<int32_t> services_;
  std::vector<int64_t> load_;   // by service: work given so far, in rows
  std::vector<int64_t> reach_;  // by service: ids that it could serve; zeros without message_rows
  std::vector<int32_t> ids_by_rows_;
};

}  // namespace moebius
