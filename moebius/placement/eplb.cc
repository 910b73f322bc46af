// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/eplb.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

struct Place {
  int64_t pack = 0;
  int64_t rank = 0;  // within the pack, in the order of arrival
};

// Packs items into `num_packs` packs of equally many.
std::vector<Place> Pack(const std::vector<double>& weight, int64_t num_packs) {
  const auto num_items = static_cast<int64_t>(weight.size());
  const int64_t items_per_pack = num_items / num_packs;
  std::vector<Place> places(weight.size());
  if (items_per_pack == 1) {
    for (int64_t item = 0; item < num_items; ++item) places[static_cast<size_t>(item)].pack = item;
    return places;
  }
  std::vector<size_t> order(weight.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight[a] > weight[b]; });
  std::vector<double> pack_weight(static_cast<size_t>(num_packs), 0);
  std::vector<int64_t> pack_items(pack_weight.size(), 0);
  for (const size_t item : order) {
    size_t lightest = pack_weight.size();
    for (size_t pack = 0; pack < pack_weight.size(); ++pack) {
      if (pack_items[pack] == items_per_pack) continue;
      if (lightest == pack_weight.size() || pack_weight[pack] < pack_weight[lightest]) {
        lightest = pack;
      }
    }
    places[item] = Place{static_cast<int64_t>(lightest), pack_items[lightest]++};
    pack_weight[lightest] += weight[item];
  }
  return places;
}

// Experts in the order of their nodes: [num_nodes, E / num_nodes].
std::vector<int32_t> ExpertsByNode(const BalanceProblem& problem, int64_t num_groups,
                                   int64_t num_nodes) {
  const auto group_size = static_cast<int64_t>(problem.load.size()) / num_groups;
  std::vector<double> group_load;
  for (int64_t group = 0; group < num_groups; ++group) {
    const auto first = problem.load.begin() + group * group_size;
    group_load.push_back(
        static_cast<double>(std::accumulate(first, first + group_size, int64_t{0})));
  }
  const std::vector<Place> places = Pack(group_load, num_nodes);
  const int64_t groups_per_node = num_groups / num_nodes;
  std::vector<int32_t> experts(problem.load.size());
  for (int64_t group = 0; group < num_groups; ++group) {
    const Place place = places[static_cast<size_t>(group)];
    const int64_t begin = (place.pack * groups_per_node + place.rank) * group_size;
    for (int64_t i = 0; i < group_size; ++i) {
      experts[static_cast<size_t>(begin + i)] = static_cast<int32_t>(group * group_size + i);
    }
  }
  return experts;
}

// Fills the slots of one node's devices.
void FillNode(const BalanceProblem& problem, absl::Span<const int32_t> experts, int64_t num_devices,
              absl::Span<int32_t> slots, std::vector<int32_t>& replica_count) {
  std::vector<double> load;
  for (const int32_t expert : experts) {
    load.push_back(static_cast<double>(problem.load[static_cast<size_t>(expert)]));
  }
  std::vector<int32_t> count(experts.size(), 1);
  std::vector<size_t> replicas(experts.size());  // which of `experts`, in the order of creation
  std::iota(replicas.begin(), replicas.end(), size_t{0});
  while (replicas.size() < slots.size()) {
    size_t heaviest = 0;
    for (size_t i = 1; i < load.size(); ++i) {
      if (load[i] / count[i] > load[heaviest] / count[heaviest]) heaviest = i;
    }
    ++count[heaviest];
    replicas.push_back(heaviest);
  }
  std::vector<double> weight;
  for (const size_t i : replicas) weight.push_back(load[i] / count[i]);
  const std::vector<Place> places = Pack(weight, num_devices);
  const int64_t slots_per_device = static_cast<int64_t>(slots.size()) / num_devices;
  for (size_t replica = 0; replica < replicas.size(); ++replica) {
    const Place place = places[replica];
    slots[static_cast<size_t>(place.pack * slots_per_device + place.rank)] =
        experts[replicas[replica]];
  }
  for (size_t i = 0; i < experts.size(); ++i) {
    replica_count[static_cast<size_t>(experts[i])] = count[i];
  }
}

bool KeepsGroupsOnNodes(const BalanceProblem& problem) {
  return problem.num_groups % problem.num_nodes == 0;
}

absl::Status CheckShape(const BalanceProblem& problem) {
  MOEBIUS_RETURN_IF_ERROR(ValidateBalanceProblem(problem));
  const auto& slots = problem.device_slots;
  if (!std::all_of(slots.begin(), slots.end(), [&](int32_t n) { return n == slots[0]; })) {
    return absl::InvalidArgumentError(
        "eplb: devices have different numbers of slots; the mode balanced takes them");
  }
  if (KeepsGroupsOnNodes(problem) && (problem.num_experts() % problem.num_groups != 0 ||
                                      problem.num_devices() % problem.num_nodes != 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "eplb: %d experts in %d groups, %d devices in %d nodes do not divide; the mode balanced "
        "takes any counts",
        problem.num_experts(), problem.num_groups, problem.num_devices(), problem.num_nodes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BalancedLayer> PlanEplb(const BalanceProblem& problem) {
  MOEBIUS_RETURN_IF_ERROR(CheckShape(problem));
  const bool by_node = KeepsGroupsOnNodes(problem);
  const int64_t num_groups = by_node ? problem.num_groups : 1;
  const int64_t num_nodes = by_node ? problem.num_nodes : 1;
  const std::vector<int32_t> experts = ExpertsByNode(problem, num_groups, num_nodes);
  BalancedLayer layer;
  layer.expert_of_slot.resize(static_cast<size_t>(problem.num_slots()));
  layer.replica_count.resize(problem.load.size());
  const size_t node_experts = experts.size() / static_cast<size_t>(num_nodes);
  const size_t node_slots = layer.expert_of_slot.size() / static_cast<size_t>(num_nodes);
  for (size_t node = 0; node < static_cast<size_t>(num_nodes); ++node) {
    FillNode(problem, absl::MakeConstSpan(experts).subspan(node * node_experts, node_experts),
             problem.num_devices() / num_nodes,
             absl::MakeSpan(layer.expert_of_slot).subspan(node * node_slots, node_slots),
             layer.replica_count);
  }
  return layer;
}

}  // namespace moebius
