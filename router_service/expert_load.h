// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

#include "moebius/api/router_info.h"
#include "moebius/base/strong_id.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/capacity.h"

namespace moebius {

/// What one step asked of each routed expert, and what it got: filled layer by layer, added to the
/// load when the step has succeeded, so that a retried step counts once. Reused from step to step.
/// Not thread-safe.
class StepLoad {
 public:
  StepLoad(int64_t num_layers, int32_t num_experts);

  /// Forgets what a step before this one left.
  void Reset();
  /// Adds what a gate chose; dropped assignments are demand as well.
  void Add(LayerId layer, const Assignments& assignments);
  /// The same, and what a capacity made of it.
  void Add(LayerId layer, const CapacityResult& result);
  /// Adds what the plans served that completed the layer's rows, by expert [E].
  void AddServed(LayerId layer, absl::Span<const int64_t> served);

  /// Demand of a layer, [E].
  absl::Span<const int64_t> demand(LayerId layer) const;
  int64_t TotalServed() const;
  /// The experts of layers for which demand = served − rerouted in + rerouted out + dropped does
  /// not hold. None, once every layer has been served.
  int64_t CountConservationErrors() const;

 private:
  friend class ExpertLoad;
  size_t Base(LayerId layer) const { return static_cast<size_t>(layer.value() * num_experts_); }

  const int64_t num_experts_;
  // Each [num_layers, num_experts].
  std::vector<int64_t> demand_;
  std::vector<int64_t> dropped_;
  std::vector<int64_t>
      expected_;  // to be served: demand less dropped and rerouted, plus taken over
  std::vector<int64_t> served_;
};

/// Assignments of every routed expert of every MoE layer since the start, in 64 bits. Counted once,
/// at the owner of the rows; dry runs, retries and canaries never come here. Thread-safe, without
/// a lock: a reader may meet a step half added.
class ExpertLoad {
 public:
  /// `moe_layers` [num_layers]: which layers have routed experts. `has_capacity`: whether anything
  /// can be dropped.
  ExpertLoad(std::vector<bool> moe_layers, int32_t num_experts, bool has_capacity = false);

  void Add(const StepLoad& step);
  ExpertLoadTable Read() const;

 private:
  using Counters = std::unique_ptr<std::atomic<int64_t>[]>;

  const std::vector<bool> moe_layers_;
  const int64_t num_experts_;
  const bool has_capacity_;
  Counters demand_;   // [num_layers, num_experts]
  Counters dropped_;  // [num_layers, num_experts]
  Counters active_;   // [num_layers], of the last step
};

}  // namespace moebius
