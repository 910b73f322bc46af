// SPDX-License-Identifier: Apache-2.0
#include "router_service/replica_load.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "router_service/served_count.h"

namespace moebius {

ReplicaLoad::ReplicaLoad(const Placement& placement) : placement_(placement) {
  size_t num_replicas = 0;
  for (int32_t layer = 0; layer < placement.num_layers(); ++layer) {
    first_id_.push_back(first_replica_.size());
    for (int32_t id = 0; id < placement.shape().NumIds(LayerId(layer)); ++id) {
      first_replica_.push_back(num_replicas);
      num_replicas += placement.Services(LayerId(layer), ExpertId(id)).size();
    }
  }
  step_.assign(num_replicas, 0);
  total_.reset(new std::atomic<int64_t>[num_replicas]());
}

size_t ReplicaLoad::First(LayerId layer, ExpertId id) const {
  return first_replica_[first_id_[static_cast<size_t>(layer.value())] +
                        static_cast<size_t>(id.value())];
}

void ReplicaLoad::BeginStep() {
  for (const size_t index : touched_) step_[index] = 0;
  touched_.clear();
}

void ReplicaLoad::AddRound(const DispatchPlan& plan, absl::Span<const int64_t> lost) {
  const LayerId layer = plan.rule().layer;
  ForEachServed(plan, lost, [&](ServiceId service, ExpertId id, int64_t count) {
    const absl::Span<const ServiceId> services = placement_.Services(layer, id);
    const auto found = std::find(services.begin(), services.end(), service);
    MOEBIUS_CHECK(found != services.end());
    const size_t index = First(layer, id) + static_cast<size_t>(found - services.begin());
    if (step_[index] == 0) touched_.push_back(index);
    step_[index] += count;
  });
}

void ReplicaLoad::Commit() {
  for (const size_t index : touched_) {
    total_[index].fetch_add(step_[index], std::memory_order_relaxed);
    step_[index] = 0;
  }
  touched_.clear();
}

std::vector<int64_t> ReplicaLoad::Served(LayerId layer, ExpertId id) const {
  const size_t first = First(layer, id);
  std::vector<int64_t> served;
  for (size_t replica = 0; replica < placement_.Services(layer, id).size(); ++replica) {
    served.push_back(total_[first + replica].load(std::memory_order_relaxed));
  }
  return served;
}

void ReplicaLoad::Describe(PlacementTable* table) const {
  for (PlacedLayer& layer : table->layers) {
    const int32_t first_id = layer.has_experts ? 0 : table->num_experts;
    for (size_t index = 0; index < layer.services_of.size(); ++index) {
      layer.served_of[index] =
          Served(LayerId(layer.layer), ExpertId(first_id + static_cast<int32_t>(index)));
    }
  }
}

}  // namespace moebius
