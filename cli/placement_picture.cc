// SPDX-License-Identifier: Apache-2.0
#include "cli/placement_picture.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

template <typename Values>
Json IntegersJson(const Values& values) {
  std::vector<Json> elements;
  for (const auto value : values) elements.push_back(Json::Integer(value));
  return Json::Array(std::move(elements));
}

template <typename Lists>
Json ListsJson(const Lists& lists) {
  std::vector<Json> elements;
  for (const auto& list : lists) elements.push_back(IntegersJson(list));
  return Json::Array(std::move(elements));
}

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// "3:120 7:0", the routed experts of a layer that a service holds, with what it served of them.
std::string FormatHeld(const PlacementTable& placement, const PlacedLayer& layer, int32_t service) {
  std::string out;
  for (int32_t expert = 0; expert < placement.num_experts; ++expert) {
    const std::vector<int32_t>& services = layer.services_of[static_cast<size_t>(expert)];
    const auto found = std::find(services.begin(), services.end(), service);
    if (found == services.end()) continue;
    const auto replica = static_cast<size_t>(found - services.begin());
    absl::StrAppend(&out, out.empty() ? "" : " ", expert, ":",
                    layer.served_of[static_cast<size_t>(expert)][replica]);
  }
  return out;
}

std::string FormatServed(const ServedLoad& served) {
  if (served.total == 0) return "nothing has been routed yet\n";
  std::string line = absl::StrFormat("services' max/mean %.2f", served.max_over_mean);
  if (served.num_replicated > 0) {
    absl::StrAppendFormat(&line, "; of %s experts with replicas the busiest one served %.0f %%",
                          FormatCount(served.num_replicated), 100 * served.busiest_share);
  }
  return line + "\n";
}

}  // namespace

ServedLoad SumServed(const PlacementTable& placement) {
  ServedLoad sum;
  sum.by_service.assign(placement.services.size(), 0);
  int64_t of_replicated = 0, of_busiest = 0;
  for (const PlacedLayer& layer : placement.layers) {
    if (!layer.has_experts) continue;
    for (size_t expert = 0; expert < static_cast<size_t>(placement.num_experts); ++expert) {
      const std::vector<int64_t>& served = layer.served_of[expert];
      const std::vector<int32_t>& services = layer.services_of[expert];
      for (size_t replica = 0; replica < services.size(); ++replica) {
        sum.by_service[static_cast<size_t>(services[replica])] += served[replica];
      }
      const int64_t total = std::accumulate(served.begin(), served.end(), int64_t{0});
      sum.total += total;
      if (served.size() < 2 || total == 0) continue;
      ++sum.num_replicated;
      of_replicated += total;
      of_busiest += *std::max_element(served.begin(), served.end());
    }
  }
  sum.busiest_share = Share(of_busiest, of_replicated);
  if (sum.total > 0) {
    const int64_t most = *std::max_element(sum.by_service.begin(), sum.by_service.end());
    sum.max_over_mean = Share(most, sum.total) * static_cast<double>(sum.by_service.size());
  }
  return sum;
}

std::string FormatPlacementTable(const PlacementTable& placement, bool all) {
  const auto num_layers = std::count_if(placement.layers.begin(), placement.layers.end(),
                                        [](const PlacedLayer& layer) { return layer.has_experts; });
  std::string out = absl::StrFormat(
      "epoch %d   %d expert services   %s for each of %d routed experts in %d layers\n",
      placement.epoch, placement.services.size(), FormatBytes(placement.expert_bytes),
      placement.num_experts, num_layers);
  const ServedLoad served = SumServed(placement);
  for (size_t index = 0; index < placement.services.size(); ++index) {
    const PlacedService& service = placement.services[index];
    absl::StrAppendFormat(
        &out, "  %-14s %-9s %s routed experts, %s sets of weights, %s   served %s, %.1f %%\n",
        EscapeControls(service.name), EscapeControls(service.state),
        FormatCount(service.num_experts_held), FormatCount(service.num_held),
        FormatBytes(service.held_bytes), FormatCount(served.by_service[index]),
        100 * Share(served.by_service[index], served.total));
  }
  out += FormatServed(served);
  if (!all) return out;
  out += "expert:assignments that were served there\n";
  for (const PlacedLayer& layer : placement.layers) {
    if (!layer.has_experts) continue;
    for (size_t service = 0; service < placement.services.size(); ++service) {
      absl::StrAppendFormat(&out, "  layer %-3d %-14s %s\n", layer.layer,
                            EscapeControls(placement.services[service].name),
                            FormatHeld(placement, layer, static_cast<int32_t>(service)));
    }
  }
  return out;
}

Json PlacementTableJson(const PlacementTable& placement) {
  const ServedLoad served = SumServed(placement);
  std::vector<Json> services, layers;
  for (size_t index = 0; index < placement.services.size(); ++index) {
    const PlacedService& service = placement.services[index];
    Json entry = Json::Object({});
    entry.Set("name", Json::String(service.name));
    entry.Set("state", Json::String(service.state));
    entry.Set("num_held", Json::Integer(service.num_held));
    entry.Set("num_experts_held", Json::Integer(service.num_experts_held));
    entry.Set("held_bytes", Json::Integer(service.held_bytes));
    entry.Set("served", Json::Integer(served.by_service[index]));
    services.push_back(std::move(entry));
  }
  for (const PlacedLayer& layer : placement.layers) {
    Json entry = Json::Object({});
    entry.Set("layer", Json::Integer(layer.layer));
    entry.Set("has_experts", Json::Boolean(layer.has_experts));
    entry.Set("services_of", ListsJson(layer.services_of));
    entry.Set("served_of", ListsJson(layer.served_of));
    layers.push_back(std::move(entry));
  }
  Json json = Json::Object({});
  json.Set("epoch", Json::Integer(static_cast<int64_t>(placement.epoch)));
  json.Set("num_experts", Json::Integer(placement.num_experts));
  json.Set("expert_bytes", Json::Integer(placement.expert_bytes));
  json.Set("served_max_over_mean", Json::Number(served.max_over_mean));
  json.Set("busiest_replica_share", Json::Number(served.busiest_share));
  json.Set("services", Json::Array(std::move(services)));
  json.Set("layers", Json::Array(std::move(layers)));
  return json;
}

}  // namespace moebius
