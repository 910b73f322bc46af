// SPDX-License-Identifier: Apache-2.0
#include "router_service/placement_description.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kMatrices = 3;  // gate, up, down

// Columns of a set of weights: the last slice of a dense layer is shorter.
int64_t WidthOf(const ModelConfig& config, LayerId layer, int32_t id) {
  if (config.IsMoeLayer(layer.value())) return config.moe_intermediate_size;
  const int64_t begin = (id - config.gate.num_experts) * config.moe_intermediate_size;
  return std::min(config.moe_intermediate_size, config.dense_intermediate_size - begin);
}

}  // namespace

PlacementTable DescribePlacement(const ModelConfig& config, const Placement& placement) {
  const auto bytes_of = [&config](int64_t width) {
    return kMatrices * config.hidden_size * width * kBf16Bytes;
  };
  PlacementTable table;
  table.epoch = placement.epoch().value();
  table.num_experts = config.gate.num_experts;
  table.expert_bytes = bytes_of(config.moe_intermediate_size);
  table.services.resize(static_cast<size_t>(placement.num_services()));
  for (size_t service = 0; service < table.services.size(); ++service) {
    table.services[service].name = absl::StrCat("expert-", service);
  }
  for (int32_t index = 0; index < config.num_layers; ++index) {
    const LayerId layer_id(index);
    PlacedLayer& layer = table.layers.emplace_back();
    layer.layer = index;
    layer.has_experts = config.IsMoeLayer(index);
    const int32_t num_ids = placement.shape().NumIds(layer_id);
    for (int32_t id = layer.has_experts ? 0 : table.num_experts; id < num_ids; ++id) {
      std::vector<int32_t>& holders = layer.services_of.emplace_back();
      std::vector<int64_t>& served = layer.served_of.emplace_back();
      for (const ServiceId service : placement.Services(layer_id, ExpertId(id))) {
        holders.push_back(service.value());
        served.push_back(0);
        PlacedService& placed = table.services[static_cast<size_t>(service.value())];
        ++placed.num_held;
        if (id < table.num_experts) ++placed.num_experts_held;
        placed.held_bytes += bytes_of(WidthOf(config, layer_id, id));
      }
    }
  }
  return table;
}

}  // namespace moebius
