// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/balanced_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/placement/eplb.h"
#include "moebius/placement/layer_balancer.h"

namespace moebius {
namespace {

using Reach = LayerBalancer::Reach;

// Rounding of sums in another order.
constexpr double kSameLoad = 1 + 1e-9;

std::vector<int32_t> ByDescending(const std::vector<double>& weight) {
  std::vector<int32_t> order(weight.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return weight[static_cast<size_t>(a)] > weight[static_cast<size_t>(b)];
  });
  return order;
}

// Slots of some devices while experts are put on them.
class Placer {
 public:
  Placer(const BalanceProblem& problem, std::vector<std::vector<int32_t>>& held)
      : problem_(problem), held_(held), load_(held.size(), 0) {}

  // Puts `experts` on `devices`: replicas by CountReplicas, heaviest first, each on the lightest
  // device with room that lacks it. False when there are fewer slots than experts.
  bool Place(const std::vector<int32_t>& experts, const std::vector<int32_t>& devices,
             std::vector<int32_t>& replica_count) {
    std::vector<int64_t> load;
    for (const int32_t expert : experts) load.push_back(problem_.load[static_cast<size_t>(expert)]);
    int64_t slots = 0;
    int32_t useful = 0;
    for (const int32_t device : devices) {
      const int32_t room = problem_.device_slots[static_cast<size_t>(device)];
      slots += std::min<int64_t>(room, static_cast<int64_t>(experts.size()));
      useful += room > 0;
    }
    if (slots < static_cast<int64_t>(experts.size())) return false;
    std::vector<int32_t> count = CountReplicas(load, slots, useful);
    std::vector<double> share;
    for (size_t i = 0; i < experts.size(); ++i) {
      share.push_back(static_cast<double>(load[i]) / count[i]);
    }
    // The first replica of every expert has a slot before any second one takes it.
    int64_t first_replicas_left = static_cast<int64_t>(experts.size());
    int64_t slots_left = slots;
    for (const int32_t i : ByDescending(share)) {
      const auto index = static_cast<size_t>(i);
      --first_replicas_left;
      const auto wanted =
          static_cast<int32_t>(std::min<int64_t>(count[index], slots_left - first_replicas_left));
      const int32_t placed = PlaceOne(experts[index], share[index], wanted, devices);
      slots_left -= placed;
      replica_count[static_cast<size_t>(experts[index])] = placed;
    }
    return true;
  }

 private:
  // Returns how many replicas found a device.
  int32_t PlaceOne(int32_t expert, double share, int32_t wanted,
                   const std::vector<int32_t>& devices) {
    candidates_.clear();
    for (const int32_t device : devices) {
      const auto index = static_cast<size_t>(device);
      if (static_cast<int64_t>(held_[index].size()) < problem_.device_slots[index]) {
        candidates_.push_back(device);
      }
    }
    const auto placed = std::min(static_cast<size_t>(wanted), candidates_.size());
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(placed),
                      candidates_.end(), [this](int32_t a, int32_t b) {
                        const double load_a = load_[static_cast<size_t>(a)];
                        const double load_b = load_[static_cast<size_t>(b)];
                        return load_a != load_b ? load_a < load_b : a < b;
                      });
    for (size_t i = 0; i < placed; ++i) {
      const auto device = static_cast<size_t>(candidates_[i]);
      held_[device].push_back(expert);
      load_[device] += share;
    }
    return static_cast<int32_t>(placed);
  }

  const BalanceProblem& problem_;
  std::vector<std::vector<int32_t>>& held_;
  std::vector<double> load_;
  std::vector<int32_t> candidates_;
};

BalancedLayer ToLayer(const BalanceProblem& problem, std::vector<std::vector<int32_t>>& held,
                      std::vector<int32_t> replica_count) {
  BalancedLayer layer;
  layer.replica_count = std::move(replica_count);
  for (size_t device = 0; device < held.size(); ++device) {
    held[device].resize(static_cast<size_t>(problem.device_slots[device]), kEmptySlot);
    layer.expert_of_slot.insert(layer.expert_of_slot.end(), held[device].begin(),
                                held[device].end());
  }
  return layer;
}

std::vector<int32_t> AllDevices(const BalanceProblem& problem) {
  std::vector<int32_t> devices(problem.device_slots.size());
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

BalancedLayer PlaceAnywhere(const BalanceProblem& problem) {
  std::vector<std::vector<int32_t>> held(problem.device_slots.size());
  std::vector<int32_t> count(problem.load.size(), 0), experts(problem.load.size());
  std::iota(experts.begin(), experts.end(), 0);
  Placer placer(problem, held);
  const bool placed = placer.Place(experts, AllDevices(problem), count);
  MOEBIUS_CHECK(placed);  // a valid problem has a slot for each expert
  return ToLayer(problem, held, std::move(count));
}

// Groups by descending load, each to the node with the least load for its slots that has room.
std::optional<std::vector<std::vector<int32_t>>> GroupsOfNodes(const BalanceProblem& problem) {
  const int32_t group_size = problem.num_experts() / problem.num_groups;
  std::vector<double> group_load(static_cast<size_t>(problem.num_groups), 0);
  for (size_t expert = 0; expert < problem.load.size(); ++expert) {
    group_load[expert / static_cast<size_t>(group_size)] +=
        static_cast<double>(problem.load[expert]);
  }
  std::vector<int64_t> slots(static_cast<size_t>(problem.num_nodes), 0), used(slots.size(), 0);
  for (int32_t device = 0; device < problem.num_devices(); ++device) {
    slots[static_cast<size_t>(problem.NodeOf(device))] +=
        problem.device_slots[static_cast<size_t>(device)];
  }
  std::vector<double> load(slots.size(), 0);
  std::vector<std::vector<int32_t>> groups(slots.size());
  for (const int32_t group : ByDescending(group_load)) {
    std::optional<size_t> lightest;
    for (size_t node = 0; node < slots.size(); ++node) {
      if (used[node] + group_size > slots[node]) continue;
      const auto fullness = [&](size_t n) { return load[n] / static_cast<double>(slots[n]); };
      if (!lightest.has_value() || fullness(node) < fullness(*lightest)) lightest = node;
    }
    if (!lightest.has_value()) return std::nullopt;
    groups[*lightest].push_back(group);
    used[*lightest] += group_size;
    load[*lightest] += group_load[static_cast<size_t>(group)];
  }
  return groups;
}

// Every group on one node; nothing where that does not fit.
std::optional<BalancedLayer> PlaceByNode(const BalanceProblem& problem) {
  if (problem.num_nodes == 1 || problem.num_groups == 1 ||
      problem.num_experts() % problem.num_groups != 0) {
    return std::nullopt;
  }
  const auto groups = GroupsOfNodes(problem);
  if (!groups.has_value()) return std::nullopt;
  const int32_t group_size = problem.num_experts() / problem.num_groups;
  std::vector<std::vector<int32_t>> held(problem.device_slots.size());
  std::vector<int32_t> count(problem.load.size(), 0);
  Placer placer(problem, held);
  for (int32_t node = 0; node < problem.num_nodes; ++node) {
    std::vector<int32_t> experts, devices;
    for (const int32_t group : (*groups)[static_cast<size_t>(node)]) {
      for (int32_t i = 0; i < group_size; ++i) experts.push_back(group * group_size + i);
    }
    for (int32_t device = 0; device < problem.num_devices(); ++device) {
      if (problem.NodeOf(device) == node) devices.push_back(device);
    }
    if (!experts.empty() && !placer.Place(experts, devices, count)) return std::nullopt;
  }
  return ToLayer(problem, held, std::move(count));
}

struct Candidate {
  BalancedLayer layer;
  double max_load = 0;
};

Candidate Improved(const BalanceProblem& problem, const BalancedLayer& start, Reach reach,
                   double bound) {
  LayerBalancer balancer(problem, start);
  balancer.Improve(reach, bound);
  return {balancer.layer(), balancer.MaxLoad()};
}

double MaxLoad(const BalanceProblem& problem, const BalancedLayer& layer) {
  const std::vector<double> loads = DeviceLoads(problem, layer);
  return *std::max_element(loads.begin(), loads.end());
}

// The same without second replicas of an expert on one device, whose slots are empty then.
BalancedLayer WithoutDoubles(const BalanceProblem& problem, BalancedLayer layer) {
  size_t begin = 0;
  for (const int32_t slots : problem.device_slots) {
    const auto device =
        absl::MakeSpan(layer.expert_of_slot).subspan(begin, static_cast<size_t>(slots));
    for (size_t slot = 1; slot < device.size(); ++slot) {
      const auto end = device.begin() + static_cast<std::ptrdiff_t>(slot);
      if (device[slot] == kEmptySlot || std::find(device.begin(), end, device[slot]) == end)
        continue;
      --layer.replica_count[static_cast<size_t>(device[slot])];
      device[slot] = kEmptySlot;
    }
    begin += static_cast<size_t>(slots);
  }
  return layer;
}

double LowerBoundLoad(const BalanceProblem& problem) {
  const auto sum = std::accumulate(problem.load.begin(), problem.load.end(), int64_t{0});
  return LowerBoundOverMean(problem) * static_cast<double>(sum) / problem.num_devices();
}

}  // namespace

bool KeepsNodeLimit(const BalanceProblem& problem, const BalancedLayer& layer) {
  std::vector<int32_t> node_of_group(static_cast<size_t>(problem.num_groups), -1);
  size_t slot = 0;
  for (int32_t device = 0; device < problem.num_devices(); ++device) {
    const auto slots = static_cast<size_t>(problem.device_slots[static_cast<size_t>(device)]);
    for (const size_t end = slot + slots; slot < end; ++slot) {
      const int64_t expert = layer.expert_of_slot[slot];
      if (expert == kEmptySlot) continue;
      int32_t& node =
          node_of_group[static_cast<size_t>(expert * problem.num_groups / problem.num_experts())];
      if (node == -1) node = problem.NodeOf(device);
      if (node != problem.NodeOf(device)) return false;
    }
  }
  return true;
}

absl::StatusOr<BalancedLayer> PlanBalanced(const BalanceProblem& problem) {
  MOEBIUS_RETURN_IF_ERROR(ValidateBalanceProblem(problem));
  const double bound = LowerBoundLoad(problem);
  Candidate best = Improved(problem, PlaceAnywhere(problem), Reach::kEverywhere, bound);
  double eplb_max = -1;
  if (const absl::StatusOr<BalancedLayer> eplb = PlanEplb(problem); eplb.ok()) {
    eplb_max = MaxLoad(problem, *eplb);
    if (best.max_load > eplb_max) {
      // Never heavier than a plan that may be had; where its doubles are gone, often lighter.
      Candidate from_eplb =
          Improved(problem, WithoutDoubles(problem, *eplb), Reach::kEverywhere, bound);
      if (from_eplb.max_load < best.max_load) best = std::move(from_eplb);
    }
  }
  if (const std::optional<BalancedLayer> by_node = PlaceByNode(problem); by_node.has_value()) {
    Candidate kept = Improved(problem, *by_node, Reach::kWithinNode, bound);
    const bool cheap = kept.max_load <= best.max_load * (1 + kNodeLimitCost) * kSameLoad;
    const bool no_worse = eplb_max < 0 || kept.max_load <= std::max(eplb_max, best.max_load);
    if (cheap && no_worse) best = std::move(kept);
  }
  MOEBIUS_DCHECK(ValidateBalancedLayer(problem, best.layer, ReplicaRule::kDistinctDevices).ok());
  return std::move(best.layer);
}

}  // namespace moebius
