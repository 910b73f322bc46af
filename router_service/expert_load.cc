// SPDX-License-Identifier: Apache-2.0
#include "router_service/expert_load.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "moebius/base/check.h"

namespace moebius {

StepLoad::StepLoad(int64_t num_layers, int32_t num_experts)
    : num_experts_(num_experts),
      demand_(static_cast<size_t>(num_layers * num_experts)),
      dropped_(demand_.size()),
      expected_(demand_.size()),
      served_(demand_.size()) {}

void StepLoad::Reset() {
  for (auto* counts : {&demand_, &dropped_, &expected_, &served_}) {
    std::fill(counts->begin(), counts->end(), 0);
  }
}

void StepLoad::Add(LayerId layer, const Assignments& assignments) {
  const size_t base = Base(layer);
  for (const int32_t id : assignments.expert_ids) {
    if (id == kNoExpert) continue;
    const size_t index = base + static_cast<size_t>(DemandedExpert(id));
    ++demand_[index];
    ++(IsDropped(id) ? dropped_ : expected_)[index];
  }
}

void StepLoad::Add(LayerId layer, const CapacityResult& result) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(result.demand.size()), num_experts_);
  const size_t base = Base(layer);
  for (size_t expert = 0; expert < result.demand.size(); ++expert) {
    demand_[base + expert] += result.demand[expert];
    dropped_[base + expert] += result.dropped[expert];
    expected_[base + expert] += result.demand[expert] - result.dropped[expert] -
                                result.rerouted_out[expert] + result.rerouted_in[expert];
  }
}

void StepLoad::AddServed(LayerId layer, absl::Span<const int64_t> served) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(served.size()), num_experts_);
  const size_t base = Base(layer);
  for (size_t expert = 0; expert < served.size(); ++expert) {
    served_[base + expert] += served[expert];
  }
}

absl::Span<const int64_t> StepLoad::demand(LayerId layer) const {
  return absl::MakeConstSpan(demand_).subspan(Base(layer), static_cast<size_t>(num_experts_));
}

int64_t StepLoad::TotalServed() const {
  return std::accumulate(served_.begin(), served_.end(), int64_t{0});
}

int64_t StepLoad::CountConservationErrors() const {
  int64_t errors = 0;
  for (size_t index = 0; index < served_.size(); ++index) {
    errors += static_cast<int64_t>(served_[index] != expected_[index]);
  }
  return errors;
}

ExpertLoad::ExpertLoad(std::vector<bool> moe_layers, int32_t num_experts, bool has_capacity)
    : moe_layers_(std::move(moe_layers)),
      num_experts_(num_experts),
      has_capacity_(has_capacity),
      demand_(new std::atomic<int64_t>[moe_layers_.size() * static_cast<size_t>(num_experts)]()),
      dropped_(new std::atomic<int64_t>[moe_layers_.size() * static_cast<size_t>(num_experts)]()),
      active_(new std::atomic<int64_t>[moe_layers_.size()]()) {}

void ExpertLoad::Add(const StepLoad& step) {
  MOEBIUS_CHECK_EQ(step.demand_.size(), moe_layers_.size() * static_cast<size_t>(num_experts_));
  size_t index = 0;
  for (size_t layer = 0; layer < moe_layers_.size(); ++layer) {
    int64_t active = 0;
    for (int64_t expert = 0; expert < num_experts_; ++expert, ++index) {
      active += static_cast<int64_t>(step.expected_[index] > 0);
      if (step.demand_[index] == 0) continue;
      demand_[index].fetch_add(step.demand_[index], std::memory_order_relaxed);
      dropped_[index].fetch_add(step.dropped_[index], std::memory_order_relaxed);
    }
    active_[layer].store(active, std::memory_order_relaxed);
  }
}

ExpertLoadTable ExpertLoad::Read() const {
  ExpertLoadTable table;
  table.num_experts = static_cast<int32_t>(num_experts_);
  table.has_capacity = has_capacity_;
  for (size_t layer = 0; layer < moe_layers_.size(); ++layer) {
    if (!moe_layers_[layer]) continue;
    table.layer_ids.push_back(static_cast<int32_t>(layer));
    table.active.push_back(active_[layer].load(std::memory_order_relaxed));
    const size_t base = layer * static_cast<size_t>(num_experts_);
    for (size_t index = base; index < base + static_cast<size_t>(num_experts_); ++index) {
      table.demand.push_back(demand_[index].load(std::memory_order_relaxed));
      table.dropped.push_back(dropped_[index].load(std::memory_order_relaxed));
    }
  }
  return table;
}

}  // namespace moebius
