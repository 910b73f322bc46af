// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/status.h"
#include "moebius/routing/capacity.h"

namespace moebius {
namespace {

absl::Status Broken(const char* rule, const std::string& what) {
  return absl::InternalError(absl::StrCat("capacity: ", rule, ": ", what));
}

// What the assignments themselves say.
struct Found {
  std::vector<int64_t> kept;     // [E]
  std::vector<int64_t> dropped;  // [E]
};

absl::Status CountRow(const Assignments& assignments, int64_t row, Found& found) {
  const absl::Span<const int32_t> ids = assignments.RowIds(row);
  for (size_t choice = 0; choice < ids.size(); ++choice) {
    if (ids[choice] == kNoExpert) continue;
    const int32_t expert = DemandedExpert(ids[choice]);
    if (expert >= static_cast<int64_t>(found.kept.size())) {
      return Broken("C3", absl::StrFormat("row %d has expert %d", row, expert));
    }
    if (!std::isfinite(assignments.RowWeights(row)[choice])) {
      return Broken("C3", absl::StrFormat("a weight of row %d is not finite", row));
    }
    for (size_t other = 0; other < choice; ++other) {
      if (ids[other] != kNoExpert && DemandedExpert(ids[other]) == expert) {
        return Broken("C3", absl::StrFormat("row %d has expert %d twice", row, expert));
      }
    }
    ++(IsDropped(ids[choice]) ? found.dropped : found.kept)[static_cast<size_t>(expert)];
  }
  return absl::OkStatus();
}

absl::Status CheckExperts(const CapacityResult& result, const Found& found) {
  for (size_t expert = 0; expert < found.kept.size(); ++expert) {
    if (result.capacity > 0 && found.kept[expert] > result.capacity) {
      return Broken("C1", absl::StrFormat("expert %d keeps %d, its capacity is %d", expert,
                                          found.kept[expert], result.capacity));
    }
    const int64_t accounted = found.kept[expert] - result.rerouted_in[expert] +
                              result.rerouted_out[expert] + result.dropped[expert];
    if (result.demand[expert] != accounted || result.dropped[expert] != found.dropped[expert]) {
      return Broken("C2",
                    absl::StrFormat("expert %d: demand %d, served %d, rerouted %d in and %d out, "
                                    "dropped %d of %d",
                                    expert, result.demand[expert], found.kept[expert],
                                    result.rerouted_in[expert], result.rerouted_out[expert],
                                    result.dropped[expert], found.dropped[expert]));
    }
  }
  return absl::OkStatus();
}

template <typename Values>
int64_t Sum(const Values& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

absl::Status ValidateCapacityResult(const Assignments& assignments, const CapacityResult& result) {
  Found found;
  found.kept.assign(result.demand.size(), 0);
  found.dropped.assign(result.demand.size(), 0);
  for (int64_t row = 0; row < assignments.num_rows; ++row) {
    MOEBIUS_RETURN_IF_ERROR(CountRow(assignments, row, found));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckExperts(result, found));
  if (Sum(result.demand) != Sum(found.kept) + Sum(found.dropped) ||
      Sum(result.dropped) != result.total_dropped ||
      Sum(result.rerouted_out) != result.total_rerouted ||
      Sum(result.rerouted_in) != result.total_rerouted) {
    return Broken("C2", absl::StrFormat("demand %d, served %d, dropped %d; said %d, rerouted %d",
                                        Sum(result.demand), Sum(found.kept), Sum(found.dropped),
                                        result.total_dropped, result.total_rerouted));
  }
  if (Sum(result.dropped_of_row) != result.total_dropped ||
      Sum(result.rerouted_of_row) != result.total_rerouted) {
    return Broken("C4", absl::StrFormat("rows say %d dropped and %d rerouted, experts %d and %d",
                                        Sum(result.dropped_of_row), Sum(result.rerouted_of_row),
                                        result.total_dropped, result.total_rerouted));
  }
  return absl::OkStatus();
}

}  // namespace moebius
