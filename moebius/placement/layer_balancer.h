// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/placement/balance.h"

namespace moebius {

/// One layer's slots while they are changed for the better: local search from any answer that keeps
/// replicas on distinct devices, one change at a time, always on the heaviest device.
///
/// A change exchanges two replicas between devices, moves one into an empty slot, or gives a slot
/// (empty, or of an expert with other replicas) to one more replica of another expert. It is made
/// only where every device that gains load ends below the heaviest one, so that the maximum, or the
/// number of devices that have it, falls with every change. Deterministic; not thread-safe.
class LayerBalancer {
 public:
  /// Borrows `problem`. `layer` is valid with distinct devices (CHECK in debug builds).
  LayerBalancer(const BalanceProblem& problem, const BalancedLayer& layer);

  /// Where a change may put replicas of an expert: devices of its node alone, or anywhere.
  enum class Reach { kWithinNode, kEverywhere };

  /// Makes the change that leaves the touched devices lightest, of those that load at most
  /// `max_loaded` replicas onto devices that lack them (1 or 2 a change). Returns how many it
  /// loaded; 0 when no change helps.
  int64_t ImproveOnce(Reach reach, int64_t max_loaded);

  /// Improves until nothing helps, or the layer is within 1/1000 of `bound` (in load), or the
  /// search has looked at some millions of changes.
  void Improve(Reach reach, double bound);

  double MaxLoad() const;
  /// Of devices below, per slot ascending ids; empty slots last.
  BalancedLayer layer() const;

 private:
  enum class Kind { kNone, kExchange, kMove, kReplicate };
  struct Change {
    Kind kind = Kind::kNone;
    int32_t from = 0;                // the heaviest device
    int32_t to = 0;                  // the other device
    int32_t expert = 0;              // on `from`
    int32_t displaced = kEmptySlot;  // on `to`: exchanged, or giving up its slot
    double peak = 0;                 // of the touched devices afterwards
    int64_t loaded = 0;
  };

  double Share(int32_t expert) const {
    const auto index = static_cast<size_t>(expert);
    return static_cast<double>(problem_.load[index]) / count_[index];
  }
  bool Holds(int32_t device, int32_t expert) const {
    return holds_[static_cast<size_t>(device) * problem_.load.size() +
                  static_cast<size_t>(expert)] != 0;
  }
  bool HasRoom(int32_t device) const {
    return static_cast<int64_t>(held_[static_cast<size_t>(device)].size()) <
           problem_.device_slots[static_cast<size_t>(device)];
  }
  double& LoadOf(int32_t device) { return loads_[static_cast<size_t>(device)]; }

  void ConsiderDevice(int32_t heaviest, int32_t expert, int32_t device, int64_t max_loaded,
                      Change* best);
  void ConsiderReplica(const Change& candidate, Change* best);
  void Offer(const Change& change, Change* best) const;
  void Apply(const Change& change);
  void Add(int32_t device, int32_t expert);
  void Remove(int32_t device, int32_t expert);
  void RecomputeLoads(int32_t expert);

  const BalanceProblem& problem_;
  std::vector<std::vector<int32_t>> held_;  // by device, ascending
  std::vector<uint8_t> holds_;              // [D, E]
  std::vector<int32_t> count_;              // [E]
  std::vector<double> loads_;               // [D]
  int64_t looked_at_ = 0;                   // changes so far
};

}  // namespace moebius
