// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Which expert service holds what, as a router tells it. Field by field as in
/// proto/moebius/api/router/v1/router.proto, which has the meaning of those not explained here.
namespace moebius {

struct PlacedService {
  std::string name;
  std::string state;
  int64_t num_held = 0;
  int64_t num_experts_held = 0;
  int64_t held_bytes = 0;
};

struct PlacedLayer {
  int32_t layer = 0;
  bool has_experts = false;
  std::vector<std::vector<int32_t>> services_of;  // by id; without experts the slices alone
  std::vector<std::vector<int64_t>> served_of;    // beside services_of: rows since the start
};

struct PlacementTable {
  uint64_t epoch = 0;
  int32_t num_experts = 0;
  int64_t expert_bytes = 0;
  std::vector<PlacedService> services;
  std::vector<PlacedLayer> layers;
};

}  // namespace moebius
