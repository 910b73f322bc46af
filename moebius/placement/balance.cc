// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/balance.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace moebius {
namespace {

absl::Status Refuse(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("placement plan: ", what));
}

absl::Status CheckRange(const char* name, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return Refuse(absl::StrFormat("%d %s; it must be from 1 to %d", value, name, max));
}

// An expert that waits for one more replica.
struct Waiting {
  double load_per_replica;
  int32_t expert;
  bool operator<(const Waiting& other) const {
    return load_per_replica != other.load_per_replica ? load_per_replica < other.load_per_replica
                                                      : expert > other.expert;
  }
};

}  // namespace

int64_t BalanceProblem::num_slots() const {
  return std::accumulate(device_slots.begin(), device_slots.end(), int64_t{0});
}

absl::Status ValidateBalanceProblem(const BalanceProblem& problem) {
  const auto num_experts = static_cast<int64_t>(problem.load.size());
  const auto num_devices = static_cast<int64_t>(problem.device_slots.size());
  for (const absl::Status& status : {CheckRange("experts", num_experts, kMaxBalanceExperts),
                                     CheckRange("devices", num_devices, kMaxBalanceDevices),
                                     CheckRange("groups", problem.num_groups, num_experts),
                                     CheckRange("nodes", problem.num_nodes, num_devices)}) {
    if (!status.ok()) return status;
  }
  for (size_t expert = 0; expert < problem.load.size(); ++expert) {
    if (problem.load[expert] < 0 || problem.load[expert] > kMaxBalanceLoad) {
      return Refuse(absl::StrFormat("the load of expert %d is %d; it must be from 0 to 2^46",
                                    expert, problem.load[expert]));
    }
  }
  for (size_t device = 0; device < problem.device_slots.size(); ++device) {
    if (problem.device_slots[device] < 0) {
      return Refuse(
          absl::StrFormat("device %d has %d slots", device, problem.device_slots[device]));
    }
  }
  const int64_t num_slots = problem.num_slots();
  if (num_slots > kMaxBalanceSlots) {
    return Refuse(absl::StrFormat("%d slots; at most %d", num_slots, kMaxBalanceSlots));
  }
  // A device has use for one slot per expert.
  int64_t usable_slots = 0;
  for (const int32_t slots : problem.device_slots) {
    usable_slots += std::min<int64_t>(slots, num_experts);
  }
  if (usable_slots < num_experts) {
    return Refuse(absl::StrFormat("%d experts need a slot each, the devices have %d", num_experts,
                                  usable_slots));
  }
  return absl::OkStatus();
}

absl::Status ValidateBalancedLayer(const BalanceProblem& problem, const BalancedLayer& layer,
                                   ReplicaRule rule) {
  const auto num_experts = static_cast<size_t>(problem.num_experts());
  if (static_cast<int64_t>(layer.expert_of_slot.size()) != problem.num_slots()) {
    return Refuse(absl::StrFormat("B3: %d slots are filled, there are %d",
                                  layer.expert_of_slot.size(), problem.num_slots()));
  }
  std::vector<int32_t> count(num_experts, 0);
  std::vector<int32_t> last_device(num_experts, -1);
  size_t slot = 0;
  for (int32_t device = 0; device < problem.num_devices(); ++device) {
    const size_t end =
        slot + static_cast<size_t>(problem.device_slots[static_cast<size_t>(device)]);
    for (; slot < end; ++slot) {
      const int32_t expert = layer.expert_of_slot[slot];
      if (expert == kEmptySlot) continue;
      if (expert < 0 || expert >= problem.num_experts()) {
        return Refuse(absl::StrFormat("B3: slot %d holds expert %d of %d", slot, expert,
                                      problem.num_experts()));
      }
      const auto index = static_cast<size_t>(expert);
      ++count[index];
      if (rule == ReplicaRule::kDistinctDevices && last_device[index] == device) {
        return Refuse(absl::StrFormat("B4: device %d holds expert %d twice", device, expert));
      }
      last_device[index] = device;
    }
  }
  if (layer.replica_count != count) return Refuse("B2: replica_count does not count the slots");
  const auto missing = std::find(count.begin(), count.end(), 0);
  if (missing != count.end()) {
    return Refuse(absl::StrFormat("B1: expert %d has no slot", missing - count.begin()));
  }
  return absl::OkStatus();
}

std::vector<double> DeviceLoads(const BalanceProblem& problem, const BalancedLayer& layer) {
  std::vector<double> loads;
  size_t slot = 0;
  for (const int32_t slots : problem.device_slots) {
    double load = 0;
    for (const size_t end = slot + static_cast<size_t>(slots); slot < end; ++slot) {
      if (layer.expert_of_slot[slot] == kEmptySlot) continue;
      const auto expert = static_cast<size_t>(layer.expert_of_slot[slot]);
      load += static_cast<double>(problem.load[expert]) / layer.replica_count[expert];
    }
    loads.push_back(load);
  }
  return loads;
}

double MaxOverMean(const BalanceProblem& problem, const BalancedLayer& layer) {
  const std::vector<double> loads = DeviceLoads(problem, layer);
  const auto sum =
      static_cast<double>(std::accumulate(problem.load.begin(), problem.load.end(), int64_t{0}));
  if (sum == 0) return 1;
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) / sum;
}

double LowerBoundOverMean(const BalanceProblem& problem) {
  const auto sum =
      static_cast<double>(std::accumulate(problem.load.begin(), problem.load.end(), int64_t{0}));
  if (sum == 0) return 1;
  const auto useful =
      static_cast<int32_t>(std::count_if(problem.device_slots.begin(), problem.device_slots.end(),
                                         [](int32_t slots) { return slots > 0; }));
  const std::vector<int32_t> count = CountReplicas(problem.load, problem.num_slots(), useful);
  double bound = 1;
  for (size_t expert = 0; expert < count.size(); ++expert) {
    const double share = static_cast<double>(problem.load[expert]) / count[expert];
    bound = std::max(bound, share * static_cast<double>(problem.num_devices()) / sum);
  }
  return bound;
}

std::vector<int32_t> CountReplicas(absl::Span<const int64_t> load, int64_t num_slots,
                                   int32_t max_replicas) {
  std::vector<int32_t> count(load.size(), 1);
  std::priority_queue<Waiting> waiting;
  const auto wait = [&](int32_t expert) {
    const auto index = static_cast<size_t>(expert);
    if (count[index] >= max_replicas) return;
    waiting.push({static_cast<double>(load[index]) / count[index], expert});
  };
  for (size_t expert = 0; expert < load.size(); ++expert) wait(static_cast<int32_t>(expert));
  for (auto left = num_slots - static_cast<int64_t>(load.size()); left > 0; --left) {
    if (waiting.empty()) break;
    const int32_t expert = waiting.top().expert;
    waiting.pop();
    ++count[static_cast<size_t>(expert)];
    wait(expert);
  }
  return count;
}

}  // namespace moebius
