// SPDX-License-Identifier: Apache-2.0
#include "router_service/exactness.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

int64_t SumOf(const std::vector<int64_t>& of_row, const SessionRows& rows) {
  if (of_row.empty()) return 0;
  return std::accumulate(of_row.begin() + rows.row_begin, of_row.begin() + rows.row_end(),
                         int64_t{0});
}

}  // namespace

RowsOutcome OutcomeOf(const StepResult& result, const SessionRows& rows) {
  RowsOutcome outcome;
  const auto bad =
      std::lower_bound(result.nonfinite_rows.begin(), result.nonfinite_rows.end(), rows.row_begin);
  if (bad != result.nonfinite_rows.end() && *bad < rows.row_end()) {
    const int64_t position = rows.position_begin + (*bad - rows.row_begin);
    outcome.failure = WithHint(absl::InvalidArgumentError(absl::StrCat(
                                   "the values of position ", position,
                                   " are not finite; this request ends, others go on")),
                               "check the weights with: moebius model verify");
    return outcome;
  }
  for (const RejectedRow& rejected : result.rejected_rows) {
    if (rejected.row < rows.row_begin || rejected.row >= rows.row_end()) continue;
    const int64_t position = rows.position_begin + (rejected.row - rows.row_begin);
    outcome.failure = RejectedByCapacity(rejected, absl::StrCat("position ", position));
    return outcome;
  }
  outcome.effects.dropped = SumOf(result.dropped_of_row, rows);
  outcome.effects.rerouted = SumOf(result.rerouted_of_row, rows);
  outcome.effects.bias_version = result.bias_version;
  return outcome;
}

absl::Status RejectedByCapacity(const RejectedRow& rejected, absl::string_view what) {
  return WithHint(
      absl::ResourceExhaustedError(
          absl::StrCat("layer ", rejected.layer.value(), " has no room for ", what,
                       ": an expert of it takes ", rejected.capacity, " rows of a step")),
      "other requests of the step took the room: try again, or let the router have a larger "
      "--capacity-factor or another --capacity-overflow");
}

Exactness DescribeExactness(const RowEffects& effects, const CapacityPolicy& capacity,
                            const PerDegreeSum& per_degree) {
  Exactness exactness;
  exactness.dropped = effects.dropped;
  exactness.rerouted = effects.rerouted;
  exactness.bias_override = effects.bias_version.has_value();
  if (effects.dropped > 0 || effects.rerouted > 0) {
    const std::string moved =
        effects.rerouted > 0 ? absl::StrCat(", ", effects.rerouted, " rerouted") : "";
    exactness.reasons.push_back(
        absl::StrCat(effects.dropped, " dropped", moved, " by ", DescribeCapacity(capacity)));
  }
  if (exactness.bias_override) {
    exactness.reasons.push_back(absl::StrCat("the balancer's biases, version ",
                                             *effects.bias_version,
                                             ", in force instead of the checkpoint's"));
  }
  if (per_degree.num_ranks > 0) {
    const std::string layout = per_degree.layout == AttentionLayout::kZigzag
                                   ? ""
                                   : absl::StrCat(", ", AttentionLayoutName(per_degree.layout));
    exactness.reasons.push_back(absl::StrCat(
        "attention summed per degree over ", per_degree.num_ranks,
        per_degree.num_ranks == 1 ? " rank" : " ranks", layout, ": its bits depend on the ranks"));
  }
  return exactness;
}

}  // namespace moebius
