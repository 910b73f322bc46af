// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/base/strong_id.h"

namespace moebius {

/// The ids that exist in a model, by layer: routed experts [0, num_experts) where the layer has
/// them, and slices of a shared expert or dense layer from num_experts upwards in every layer.
struct PlacementShape {
  struct Layer {
    bool has_experts = false;
    int32_t num_slices = 0;
    friend bool operator==(const Layer&, const Layer&) = default;
  };
  int32_t num_experts = 0;  // E
  std::vector<Layer> layers;

  /// `moe_layers` [num_layers]; a MoE layer has `num_shared_slices`, a dense one
  /// `num_dense_slices`.
  static PlacementShape Make(int32_t num_experts, const std::vector<bool>& moe_layers,
                             int64_t num_shared_slices, int64_t num_dense_slices);

  int32_t NumIds(LayerId layer) const { return num_experts + LayerAt(layer).num_slices; }
  bool Has(LayerId layer, ExpertId id) const;
  const Layer& LayerAt(LayerId layer) const { return layers[static_cast<size_t>(layer.value())]; }

  friend bool operator==(const PlacementShape&, const PlacementShape&) = default;
};

/// One set of weights that a service holds.
struct HeldExpert {
  LayerId layer;
  ExpertId id;
  friend auto operator<=>(const HeldExpert&, const HeldExpert&) = default;
};

/// Replica counts of a static placement, each at most the number of services.
struct StaticPlacementOptions {
  int32_t num_services = 1;
  int32_t expert_replicas = 1;        // of each routed expert; clamped to num_services
  int32_t shared_slice_replicas = 0;  // 0: on every service
  int32_t dense_slice_replicas = 0;   // 0: as expert_replicas
};

/// Which services hold which expert: an immutable snapshot with an epoch.
///
/// Invariants (Make refuses what breaks them; a Placement that exists keeps them):
/// 1. Every id of the shape has at least one service, ids outside it have none.
/// 2. The services of an id are distinct and in [0, num_services), in order of preference.
///
/// A value: copies are deep, reads are thread-safe.
class Placement {
 public:
  /// The services of every id of every layer, in order of preference.
  using Table = std::vector<std::vector<std::vector<ServiceId>>>;  // [layer][id]

  /// No layer, no service.
  Placement() = default;

  /// INVALID_ARGUMENT names layer and id. `table[layer]` has NumIds(layer) entries; those of
  /// routed ids in a layer without experts are empty.
  static absl::StatusOr<Placement> Make(Epoch epoch, PlacementShape shape, int32_t num_services,
                                        const Table& table);

  /// Everything on service 0.
  static Placement SingleService(const PlacementShape& shape);

  /// Ids are cut into contiguous ranges: expert e prefers service floor(e·M / E) of M, so that
  /// services hold whole combine groups wherever M divides the number of groups. The next replicas
  /// follow on the next services, round robin: what a dead service held is spread over two others.
  /// Slices are cut in the same way, rotated by layer. INVALID_ARGUMENT for a count below 1.
  static absl::StatusOr<Placement> Static(const PlacementShape& shape,
                                          const StaticPlacementOptions& options);

  Epoch epoch() const { return epoch_; }
  Placement WithEpoch(Epoch epoch) const;
  int32_t num_services() const { return num_services_; }
  const PlacementShape& shape() const { return shape_; }
  int64_t num_layers() const { return static_cast<int64_t>(shape_.layers.size()); }

  /// Empty for an id that the layer does not have. `layer` in range; any `id`.
  absl::Span<const ServiceId> Services(LayerId layer, ExpertId id) const;
  bool Holds(LayerId layer, ExpertId id, ServiceId service) const;
  /// Ascending by (layer, id).
  std::vector<HeldExpert> HeldBy(ServiceId service) const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Epoch epoch_;
  int32_t num_services_ = 0;
  PlacementShape shape_;
  std::vector<int64_t> first_id_;  // [num_layers + 1], of a layer in offsets_
  std::vector<int64_t> offsets_;   // [all ids + 1], into services_
  std::vector<ServiceId> services_;
};

}  // namespace moebius
