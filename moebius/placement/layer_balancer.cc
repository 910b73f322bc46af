// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/layer_balancer.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {
namespace {

// Changes that one search looks at: some milliseconds.
constexpr int64_t kMaxLookedAt = 1'500'000;
// A change must pay by more than rounding does.
constexpr double kWorthwhile = 1 - 1e-9;
// Close enough to the bound to stop.
constexpr double kCloseToBound = 1.0001;

}  // namespace

LayerBalancer::LayerBalancer(const BalanceProblem& problem, const BalancedLayer& layer)
    : problem_(problem),
      held_(problem.device_slots.size()),
      holds_(problem.device_slots.size() * problem.load.size(), 0),
      count_(layer.replica_count),
      loads_(problem.device_slots.size(), 0) {
  MOEBIUS_DCHECK(ValidateBalancedLayer(problem, layer, ReplicaRule::kDistinctDevices).ok());
  size_t slot = 0;
  for (int32_t device = 0; device < problem.num_devices(); ++device) {
    const auto slots = static_cast<size_t>(problem.device_slots[static_cast<size_t>(device)]);
    for (const size_t end = slot + slots; slot < end; ++slot) {
      if (layer.expert_of_slot[slot] != kEmptySlot) Add(device, layer.expert_of_slot[slot]);
    }
  }
  for (int32_t expert = 0; expert < problem.num_experts(); ++expert) RecomputeLoads(expert);
}

int64_t LayerBalancer::ImproveOnce(Reach reach, int64_t max_loaded) {
  const auto heaviest =
      static_cast<int32_t>(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
  Change best;
  best.peak = LoadOf(heaviest) * kWorthwhile;
  for (const int32_t expert : held_[static_cast<size_t>(heaviest)]) {
    for (int32_t device = 0; device < problem_.num_devices(); ++device) {
      if (device == heaviest || Holds(device, expert)) continue;
      if (reach == Reach::kWithinNode && problem_.NodeOf(device) != problem_.NodeOf(heaviest)) {
        continue;
      }
      ConsiderDevice(heaviest, expert, device, max_loaded, &best);
    }
  }
  if (best.kind == Kind::kNone) return 0;
  Apply(best);
  return best.loaded;
}

void LayerBalancer::Improve(Reach reach, double bound) {
  looked_at_ = 0;
  while (looked_at_ < kMaxLookedAt && MaxLoad() > bound * kCloseToBound) {
    if (ImproveOnce(reach, /*max_loaded=*/2) == 0) return;
  }
}

// All changes that take load of `expert` from the heaviest device to `device`.
void LayerBalancer::ConsiderDevice(int32_t heaviest, int32_t expert, int32_t device,
                                   int64_t max_loaded, Change* best) {
  const double from_load = LoadOf(heaviest), to_load = LoadOf(device);
  if (max_loaded < 1 || to_load >= best->peak) return;
  const double share = Share(expert);
  Change change;
  change.from = heaviest;
  change.to = device;
  change.expert = expert;
  change.loaded = 1;
  if (HasRoom(device)) {
    change.kind = Kind::kMove;
    change.peak = std::max(from_load - share, to_load + share);
    Offer(change, best);
    ConsiderReplica(change, best);
  }
  for (const int32_t other : held_[static_cast<size_t>(device)]) {
    ++looked_at_;
    change.displaced = other;
    const double difference = share - Share(other);
    if (max_loaded >= 2 && difference > 0 && !Holds(heaviest, other)) {
      change.kind = Kind::kExchange;
      change.loaded = 2;
      change.peak = std::max(from_load - difference, to_load + difference);
      Offer(change, best);
      change.loaded = 1;
    }
    if (count_[static_cast<size_t>(other)] > 1) ConsiderReplica(change, best);
  }
}

// One more replica of an expert, in the slot of another that has more than one, or an empty one.
void LayerBalancer::ConsiderReplica(const Change& candidate, Change* best) {
  Change change = candidate;
  change.kind = Kind::kReplicate;
  const auto expert = static_cast<size_t>(change.expert);
  const double share = Share(change.expert);
  const double new_share = static_cast<double>(problem_.load[expert]) / (count_[expert] + 1);
  double to_load = LoadOf(change.to) + new_share;
  double peak = LoadOf(change.from) - share + new_share;
  if (change.displaced != kEmptySlot) {
    const double displaced_share = Share(change.displaced);
    to_load -= displaced_share;
    if (std::max(peak, to_load) >= best->peak) return;
    looked_at_ += problem_.num_devices() / 4;
    const auto displaced = static_cast<size_t>(change.displaced);
    const double risen =
        static_cast<double>(problem_.load[displaced]) / (count_[displaced] - 1) - displaced_share;
    for (int32_t device = 0; device < problem_.num_devices(); ++device) {
      if (device == change.to || !Holds(device, change.displaced)) continue;
      const double relief = Holds(device, change.expert) ? share - new_share : 0;
      peak = std::max(peak, LoadOf(device) + risen - relief);
      if (peak >= best->peak) return;
    }
  }
  change.peak = std::max(peak, to_load);
  Offer(change, best);
}

void LayerBalancer::Offer(const Change& change, Change* best) const {
  if (change.peak < best->peak) *best = change;
}

void LayerBalancer::Apply(const Change& change) {
  switch (change.kind) {
    case Kind::kNone:
      return;
    case Kind::kExchange:
      Remove(change.from, change.expert);
      Remove(change.to, change.displaced);
      Add(change.from, change.displaced);
      Add(change.to, change.expert);
      break;
    case Kind::kMove:
      Remove(change.from, change.expert);
      Add(change.to, change.expert);
      break;
    case Kind::kReplicate:
      if (change.displaced != kEmptySlot) {
        Remove(change.to, change.displaced);
        --count_[static_cast<size_t>(change.displaced)];
      }
      Add(change.to, change.expert);
      ++count_[static_cast<size_t>(change.expert)];
      break;
  }
  RecomputeLoads(change.expert);
  if (change.displaced != kEmptySlot) RecomputeLoads(change.displaced);
  // They may hold neither now.
  for (const int32_t device : {change.from, change.to}) {
    double load = 0;
    for (const int32_t expert : held_[static_cast<size_t>(device)]) load += Share(expert);
    LoadOf(device) = load;
  }
}

void LayerBalancer::Add(int32_t device, int32_t expert) {
  std::vector<int32_t>& held = held_[static_cast<size_t>(device)];
  held.insert(std::lower_bound(held.begin(), held.end(), expert), expert);
  holds_[static_cast<size_t>(device) * problem_.load.size() + static_cast<size_t>(expert)] = 1;
}

void LayerBalancer::Remove(int32_t device, int32_t expert) {
  std::vector<int32_t>& held = held_[static_cast<size_t>(device)];
  held.erase(std::lower_bound(held.begin(), held.end(), expert));
  holds_[static_cast<size_t>(device) * problem_.load.size() + static_cast<size_t>(expert)] = 0;
}

// Of the devices that hold `expert`: summed anew, so that rounding does not add up.
void LayerBalancer::RecomputeLoads(int32_t expert) {
  for (int32_t device = 0; device < problem_.num_devices(); ++device) {
    if (!Holds(device, expert)) continue;
    double load = 0;
    for (const int32_t held : held_[static_cast<size_t>(device)]) load += Share(held);
    LoadOf(device) = load;
  }
}

double LayerBalancer::MaxLoad() const { return *std::max_element(loads_.begin(), loads_.end()); }

BalancedLayer LayerBalancer::layer() const {
  BalancedLayer layer;
  layer.replica_count = count_;
  for (size_t device = 0; device < held_.size(); ++device) {
    layer.expert_of_slot.insert(layer.expert_of_slot.end(), held_[device].begin(),
                                held_[device].end());
    layer.expert_of_slot.insert(
        layer.expert_of_slot.end(),
        static_cast<size_t>(problem_.device_slots[device]) - held_[device].size(), kEmptySlot);
  }
  return layer;
}

}  // namespace moebius
