// SPDX-License-Identifier: Apache-2.0
// Biases and placements.
#include "absl/strings/str_cat.h"

#include "moebius/wire/api/router_codec.h"

namespace moebius {
namespace {

namespace pb = router_pb;

}  // namespace

void ToProto(const BiasTable& table, pb::GetBiasResponse* out) {
  out->set_mode(table.mode);
  out->set_version(table.version);
  out->set_gamma(table.gamma);
  out->set_limit(table.limit);
  out->set_window(table.window);
  out->set_observed(table.observed);
  out->set_file(table.file);
  out->set_model_hash(table.model_hash);
  for (const LayerBias& layer : table.layers) {
    pb::LayerBias* entry = out->add_layers();
    entry->set_layer(layer.layer);
    entry->mutable_base()->Add(layer.base.begin(), layer.base.end());
    entry->mutable_bias()->Add(layer.bias.begin(), layer.bias.end());
    entry->set_max_violation(layer.max_violation);
    entry->set_max_delta(layer.max_delta);
    entry->set_changed_ratio(layer.changed_ratio);
  }
}

absl::StatusOr<BiasTable> FromProto(const pb::GetBiasResponse& in) {
  BiasTable table;
  table.mode = in.mode();
  table.version = in.version();
  table.gamma = in.gamma();
  table.limit = in.limit();
  table.window = in.window();
  table.observed = in.observed();
  table.file = in.file();
  table.model_hash = in.model_hash();
  for (const pb::LayerBias& entry : in.layers()) {
    LayerBias& layer = table.layers.emplace_back();
    layer.layer = entry.layer();
    layer.base.assign(entry.base().begin(), entry.base().end());
    layer.bias.assign(entry.bias().begin(), entry.bias().end());
    if (layer.base.size() != layer.bias.size()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.layer, " has ",
                                                     layer.bias.size(), " biases beside ",
                                                     layer.base.size(), " of the checkpoint"));
    }
    layer.max_violation = entry.max_violation();
    layer.max_delta = entry.max_delta();
    layer.changed_ratio = entry.changed_ratio();
  }
  return table;
}

void ToProto(const BiasUpdate& update, pb::UpdateBiasRequest* out) {
  for (const BiasUpdate::Layer& layer : update.set) {
    pb::BiasOfLayer* entry = out->add_set();
    entry->set_layer(layer.layer);
    entry->mutable_bias()->Add(layer.bias.begin(), layer.bias.end());
  }
  for (const BiasUpdate::Layer& layer : update.windows) {
    pb::DemandOfLayer* entry = out->add_windows();
    entry->set_layer(layer.layer);
    entry->mutable_demand()->Add(layer.demand.begin(), layer.demand.end());
  }
  out->set_reset(update.reset);
  if (update.expected_version.has_value()) out->set_expected_version(*update.expected_version);
}

BiasUpdate FromProto(const pb::UpdateBiasRequest& in) {
  BiasUpdate update;
  for (const pb::BiasOfLayer& entry : in.set()) {
    update.set.push_back({entry.layer(), {entry.bias().begin(), entry.bias().end()}, {}});
  }
  for (const pb::DemandOfLayer& entry : in.windows()) {
    update.windows.push_back({entry.layer(), {}, {entry.demand().begin(), entry.demand().end()}});
  }
  update.reset = in.reset();
  if (in.has_expected_version()) update.expected_version = in.expected_version();
  return update;
}

void ToProto(const PlacementTable& table, pb::GetPlacementResponse* out) {
  out->set_epoch(table.epoch);
  out->set_num_experts(table.num_experts);
  out->set_expert_bytes(table.expert_bytes);
  for (const PlacedService& service : table.services) {
    pb::PlacedService* entry = out->add_services();
    entry->set_name(service.name);
    entry->set_state(service.state);
    entry->set_num_held(service.num_held);
    entry->set_num_experts_held(service.num_experts_held);
    entry->set_held_bytes(service.held_bytes);
  }
  for (const PlacedLayer& layer : table.layers) {
    pb::PlacedLayer* entry = out->add_layers();
    entry->set_layer(layer.layer);
    entry->set_has_experts(layer.has_experts);
    for (size_t index = 0; index < layer.services_of.size(); ++index) {
      const std::vector<int32_t>& services = layer.services_of[index];
      const std::vector<int64_t>& served = layer.served_of[index];
      pb::Replicas* id = entry->add_ids();
      id->mutable_services()->Add(services.begin(), services.end());
      id->mutable_served()->Add(served.begin(), served.end());
    }
  }
}

absl::StatusOr<PlacementTable> FromProto(const pb::GetPlacementResponse& in) {
  PlacementTable table;
  table.epoch = in.epoch();
  table.num_experts = in.num_experts();
  table.expert_bytes = in.expert_bytes();
  for (const pb::PlacedService& entry : in.services()) {
    table.services.push_back({entry.name(), entry.state(), entry.num_held(),
                              entry.num_experts_held(), entry.held_bytes()});
  }
  for (const pb::PlacedLayer& entry : in.layers()) {
    PlacedLayer& layer = table.layers.emplace_back();
    layer.layer = entry.layer();
    layer.has_experts = entry.has_experts();
    if (layer.has_experts && entry.ids_size() < in.num_experts()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer.layer, " has ",
                                                     entry.ids_size(), " ids of ", in.num_experts(),
                                                     " experts"));
    }
    for (const pb::Replicas& id : entry.ids()) {
      for (const int32_t service : id.services()) {
        if (service >= 0 && service < in.services_size()) continue;
        return absl::InvalidArgumentError(absl::StrCat("layer ", layer.layer, " names service ",
                                                       service, " of ", in.services_size()));
      }
      if (id.served_size() != 0 && id.served_size() != id.services_size()) {
        return absl::InvalidArgumentError(absl::StrCat("layer ", layer.layer, " tells what ",
                                                       id.served_size(), " of ", id.services_size(),
                                                       " services served"));
      }
      layer.services_of.emplace_back(id.services().begin(), id.services().end());
      layer.served_of.emplace_back(id.served().begin(), id.served().end());
      layer.served_of.back().resize(layer.services_of.back().size());
    }
  }
  return table;
}

}  // namespace moebius
