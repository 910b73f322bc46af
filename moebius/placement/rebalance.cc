// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/rebalance.h"

#include <algorithm>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/placement/balanced_plan.h"
#include "moebius/placement/layer_balancer.h"

namespace moebius {
namespace {

// Rounding of sums in another order.
constexpr double kSameLoad = 1 + 1e-9;

double MaxLoad(const BalanceProblem& problem, const BalancedLayer& layer) {
  const std::vector<double> loads = DeviceLoads(problem, layer);
  return *std::max_element(loads.begin(), loads.end());
}

// Renames the devices of `plan` within nodes and equal capacities so that much of `before` stays:
// pairs by descending number of common experts, ties by lowest devices.
BalancedLayer AlignDevices(const BalanceProblem& problem, const BalancedLayer& before,
                           const BalancedLayer& plan) {
  const auto num_devices = static_cast<size_t>(problem.num_devices());
  std::vector<size_t> begin(num_devices + 1, 0);
  for (size_t d = 0; d < num_devices; ++d) {
    begin[d + 1] = begin[d] + static_cast<size_t>(problem.device_slots[d]);
  }
  std::vector<std::vector<size_t>> holders(problem.load.size());  // in `before`
  for (size_t d = 0; d < num_devices; ++d) {
    for (size_t slot = begin[d]; slot < begin[d + 1]; ++slot) {
      const int32_t expert = before.expert_of_slot[slot];
      if (expert != kEmptySlot) holders[static_cast<size_t>(expert)].push_back(d);
    }
  }
  struct Pair {
    int32_t common;
    size_t device, planned;
  };
  std::vector<Pair> pairs;
  std::vector<int32_t> common(num_devices);
  for (size_t planned = 0; planned < num_devices; ++planned) {
    std::fill(common.begin(), common.end(), 0);
    for (size_t slot = begin[planned]; slot < begin[planned + 1]; ++slot) {
      if (plan.expert_of_slot[slot] == kEmptySlot) continue;
      for (const size_t d : holders[static_cast<size_t>(plan.expert_of_slot[slot])]) ++common[d];
    }
    for (size_t d = 0; d < num_devices; ++d) {
      if (problem.device_slots[d] == problem.device_slots[planned] &&
          problem.NodeOf(static_cast<int32_t>(d)) ==
              problem.NodeOf(static_cast<int32_t>(planned))) {
        pairs.push_back({common[d], d, planned});
      }
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.common > b.common; });
  std::vector<uint8_t> named(num_devices, 0), used(num_devices, 0);
  BalancedLayer aligned = plan;
  for (const Pair& pair : pairs) {
    if (named[pair.planned] || used[pair.device]) continue;
    named[pair.planned] = used[pair.device] = 1;
    std::copy(plan.expert_of_slot.begin() + static_cast<int64_t>(begin[pair.planned]),
              plan.expert_of_slot.begin() + static_cast<int64_t>(begin[pair.planned + 1]),
              aligned.expert_of_slot.begin() + static_cast<int64_t>(begin[pair.device]));
  }
  return aligned;
}

// The layers from where they are, within the budget.
void ImproveWithin(absl::Span<const BalanceProblem> problems, int64_t max_loaded,
                   Rebalance* rebalance) {
  std::vector<LayerBalancer> balancers;
  std::vector<double> max_over_mean;
  for (size_t layer = 0; layer < problems.size(); ++layer) {
    balancers.emplace_back(problems[layer], rebalance->layers[layer]);
    max_over_mean.push_back(MaxOverMean(problems[layer], rebalance->layers[layer]));
  }
  while (true) {
    const auto worst = static_cast<size_t>(
        std::max_element(max_over_mean.begin(), max_over_mean.end()) - max_over_mean.begin());
    if (max_over_mean[worst] <= 0) break;  // nothing helps any layer
    const double before = balancers[worst].MaxLoad();
    const int64_t loaded = balancers[worst].ImproveOnce(LayerBalancer::Reach::kEverywhere,
                                                        max_loaded - rebalance->num_loaded);
    rebalance->num_loaded += loaded;
    max_over_mean[worst] *= loaded == 0 || before == 0 ? 0 : balancers[worst].MaxLoad() / before;
  }
  for (size_t layer = 0; layer < problems.size(); ++layer) {
    rebalance->layers[layer] = balancers[layer].layer();
  }
}

}  // namespace

int64_t CountLoaded(const BalanceProblem& problem, const BalancedLayer& before,
                    const BalancedLayer& after) {
  int64_t loaded = 0;
  size_t begin = 0;
  for (const int32_t slots : problem.device_slots) {
    const auto of_device = [&](const BalancedLayer& layer) {
      return absl::MakeConstSpan(layer.expert_of_slot).subspan(begin, static_cast<size_t>(slots));
    };
    const absl::Span<const int32_t> had = of_device(before);
    for (const int32_t expert : of_device(after)) {
      loaded += expert != kEmptySlot && std::find(had.begin(), had.end(), expert) == had.end();
    }
    begin += static_cast<size_t>(slots);
  }
  return loaded;
}

absl::StatusOr<Rebalance> PlanRebalance(absl::Span<const BalanceProblem> problems,
                                        absl::Span<const BalancedLayer> before,
                                        int64_t max_loaded) {
  MOEBIUS_CHECK_EQ(problems.size(), before.size());
  Rebalance fresh, kept;
  for (size_t layer = 0; layer < problems.size(); ++layer) {
    MOEBIUS_RETURN_IF_ERROR(
        ValidateBalancedLayer(problems[layer], before[layer], ReplicaRule::kDistinctDevices));
    MOEBIUS_ASSIGN_OR_RETURN(const BalancedLayer plan, PlanBalanced(problems[layer]));
    BalancedLayer aligned = AlignDevices(problems[layer], before[layer], plan);
    kept.layers.push_back(before[layer]);
    const bool pays =
        MaxLoad(problems[layer], aligned) * kSameLoad < MaxLoad(problems[layer], before[layer]);
    if (!pays) aligned = before[layer];
    fresh.layers.push_back(std::move(aligned));
    fresh.num_loaded += CountLoaded(problems[layer], before[layer], fresh.layers.back());
  }
  if (fresh.num_loaded <= max_loaded) return fresh;
  kept.limited = true;
  ImproveWithin(problems, max_loaded, &kept);
  return kept;
}

}  // namespace moebius
