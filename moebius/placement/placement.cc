// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

absl::Status CheckServices(const PlacementShape& shape, int32_t num_services, LayerId layer,
                           ExpertId id, const std::vector<ServiceId>& services) {
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: layer %d, expert %d %s", layer.value(), id.value(), what));
  };
  if (!shape.Has(layer, id)) {
    return services.empty() ? absl::OkStatus() : refuse("does not exist in this model");
  }
  if (services.empty()) return refuse("has no service");
  for (size_t i = 0; i < services.size(); ++i) {
    const ServiceId service = services[i];
    if (service.value() < 0 || service.value() >= num_services) {
      return refuse(
          absl::StrFormat("is on service %d; there are %d", service.value(), num_services));
    }
    if (std::count(services.begin(), services.begin() + static_cast<std::ptrdiff_t>(i), service)) {
      return refuse(absl::StrFormat("is twice on service %d", service.value()));
    }
  }
  return absl::OkStatus();
}

// `replicas` services in a row, from `first` on.
std::vector<ServiceId> Consecutive(int64_t first, int32_t replicas, int32_t num_services) {
  std::vector<ServiceId> services;
  for (int64_t i = 0; i < replicas; ++i) {
    services.emplace_back(static_cast<int32_t>((first + i) % num_services));
  }
  return services;
}

int32_t ClampReplicas(int32_t replicas, int32_t if_zero, int32_t num_services) {
  return std::min(replicas == 0 ? if_zero : replicas, num_services);
}

}  // namespace

PlacementShape PlacementShape::Make(int32_t num_experts, const std::vector<bool>& moe_layers,
                                    int64_t num_shared_slices, int64_t num_dense_slices) {
  PlacementShape shape;
  shape.num_experts = num_experts;
  for (const bool has_experts : moe_layers) {
    const int64_t num_slices = has_experts ? num_shared_slices : num_dense_slices;
    shape.layers.push_back(Layer{has_experts, static_cast<int32_t>(num_slices)});
  }
  return shape;
}

bool PlacementShape::Has(LayerId layer, ExpertId id) const {
  if (layer.value() < 0 || layer.value() >= static_cast<int64_t>(layers.size())) return false;
  if (id.value() < 0 || id.value() >= NumIds(layer)) return false;
  return id.value() >= num_experts || LayerAt(layer).has_experts;
}

absl::StatusOr<Placement> Placement::Make(Epoch epoch, PlacementShape shape, int32_t num_services,
                                          const Table& table) {
  if (num_services < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: %d services; at least 1 is needed", num_services));
  }
  if (table.size() != shape.layers.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("placement: %d layers; the model has %d",
                                                      table.size(), shape.layers.size()));
  }
  Placement placement;
  placement.epoch_ = epoch;
  placement.num_services_ = num_services;
  placement.offsets_.push_back(0);
  for (size_t layer = 0; layer < table.size(); ++layer) {
    const LayerId layer_id(static_cast<int32_t>(layer));
    if (table[layer].size() != static_cast<size_t>(shape.NumIds(layer_id))) {
      return absl::InvalidArgumentError(
          absl::StrFormat("placement: layer %d has %d ids; expected "
                          "%d",
                          layer, table[layer].size(), shape.NumIds(layer_id)));
    }
    placement.first_id_.push_back(static_cast<int64_t>(placement.offsets_.size()) - 1);
    for (size_t id = 0; id < table[layer].size(); ++id) {
      const std::vector<ServiceId>& services = table[layer][id];
      MOEBIUS_RETURN_IF_ERROR(CheckServices(shape, num_services, layer_id,
                                            ExpertId(static_cast<int32_t>(id)), services));
      placement.services_.insert(placement.services_.end(), services.begin(), services.end());
      placement.offsets_.push_back(static_cast<int64_t>(placement.services_.size()));
    }
  }
  placement.first_id_.push_back(static_cast<int64_t>(placement.offsets_.size()) - 1);
  placement.shape_ = std::move(shape);
  return placement;
}

Placement Placement::SingleService(const PlacementShape& shape) {
  absl::StatusOr<Placement> placement = Static(shape, StaticPlacementOptions());
  MOEBIUS_CHECK(placement.ok());
  return *std::move(placement);
}

absl::StatusOr<Placement> Placement::Static(const PlacementShape& shape,
                                            const StaticPlacementOptions& options) {
  const int32_t num_services = options.num_services;
  if (num_services < 1 || options.expert_replicas < 1 || options.shared_slice_replicas < 0 ||
      options.dense_slice_replicas < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "placement: %d services, %d replicas of an expert, %d of a shared slice, %d of a dense "
        "slice; the first two are at least 1, the others not negative",
        num_services, options.expert_replicas, options.shared_slice_replicas,
        options.dense_slice_replicas));
  }
  const int32_t expert_replicas = std::min(options.expert_replicas, num_services);
  Table table(shape.layers.size());
  for (size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const PlacementShape::Layer& facts = shape.layers[layer];
    for (int64_t id = 0; id < shape.num_experts; ++id) {
      std::vector<ServiceId> services;
      if (facts.has_experts) {
        services =
            Consecutive(id * num_services / shape.num_experts, expert_replicas, num_services);
      }
      table[layer].push_back(std::move(services));
    }
    const int32_t slice_replicas =
        facts.has_experts
            ? ClampReplicas(options.shared_slice_replicas, num_services, num_services)
            : ClampReplicas(options.dense_slice_replicas, expert_replicas, num_services);
    for (int64_t slice = 0; slice < facts.num_slices; ++slice) {
      const int64_t first = slice * num_services / facts.num_slices + static_cast<int64_t>(layer);
      table[layer].push_back(Consecutive(first, slice_replicas, num_services));
    }
  }
  return Make(Epoch(1), shape, num_services, table);
}

Placement Placement::WithEpoch(Epoch epoch) const {
  Placement copy = *this;
  copy.epoch_ = epoch;
  return copy;
}

absl::Span<const ServiceId> Placement::Services(LayerId layer, ExpertId id) const {
  if (!shape_.Has(layer, id)) return {};
  const auto index = static_cast<size_t>(first_id_[static_cast<size_t>(layer.value())]) +
                     static_cast<size_t>(id.value());
  const auto begin = static_cast<size_t>(offsets_[index]);
  return absl::MakeConstSpan(services_).subspan(begin,
                                                static_cast<size_t>(offsets_[index + 1]) - begin);
}

bool Placement::Holds(LayerId layer, ExpertId id, ServiceId service) const {
  const absl::Span<const ServiceId> services = Services(layer, id);
  return std::find(services.begin(), services.end(), service) != services.end();
}

std::vector<HeldExpert> Placement::HeldBy(ServiceId service) const {
  std::vector<HeldExpert> held;
  for (int32_t layer = 0; layer < num_layers(); ++layer) {
    for (int32_t id = 0; id < shape_.NumIds(LayerId(layer)); ++id) {
      if (Holds(LayerId(layer), ExpertId(id), service)) {
        held.push_back(HeldExpert{LayerId(layer), ExpertId(id)});
      }
    }
  }
  return held;
}

}  // namespace moebius
