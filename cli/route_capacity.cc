// SPDX-License-Identifier: Apache-2.0
#include "cli/route_capacity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/terminal.h"

#include "moebius/model/json.h"
#include "moebius/routing/capacity.h"

namespace moebius {
namespace {

constexpr size_t kMostExperts = 8;  // that the line names

}  // namespace

CapacityPreview PreviewCapacity(const RouteAnswer& answer, double factor) {
  Assignments assignments;
  assignments.Reset(answer.num_tokens(), answer.top_k);
  // Strongest first is no gate's order of choice, but by weight that order plays no part.
  assignments.expert_ids = answer.expert_ids;
  assignments.weights = answer.weights;
  CapacityPolicy policy;
  policy.factor = factor;
  CapacityLimiter limiter;
  CapacityResult result;
  limiter.Apply(policy, answer.num_experts, GateInput(), &assignments, &result);
  return {factor, result.capacity, std::move(result.dropped), result.total_dropped};
}

std::string FormatPreview(const RouteAnswer& answer, const CapacityPreview& preview) {
  std::vector<std::pair<int64_t, size_t>> full;  // (-dropped, expert)
  for (size_t expert = 0; expert < preview.dropped.size(); ++expert) {
    if (preview.dropped[expert] > 0) full.emplace_back(-preview.dropped[expert], expert);
  }
  std::sort(full.begin(), full.end());
  std::string line =
      absl::StrCat("with --capacity-factor ", FormatNumber(preview.factor), " (", preview.capacity,
                   " per expert): ", FormatCount(preview.total_dropped), " of ",
                   FormatCount(answer.num_tokens() * answer.top_k), " would drop");
  for (size_t i = 0; i < std::min(full.size(), kMostExperts); ++i) {
    absl::StrAppend(&line, i == 0 ? ": e" : ", e", full[i].second, " ", -full[i].first);
  }
  return line + (full.size() > kMostExperts ? ", …\n" : "\n");
}

}  // namespace moebius
