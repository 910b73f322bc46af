// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/api/placement_table.h"
#include "moebius/model/json.h"

namespace moebius {

/// How a router's services shared the work on routed experts, in assignments since it began.
struct ServedLoad {
  std::vector<int64_t> by_service;
  int64_t total = 0;
  double max_over_mean = 0;  // of by_service; 0 while nothing was served
  /// Experts of layers that several services hold and that were asked for.
  int64_t num_replicated = 0;
  /// Of all assignments of these: what the busiest replica of each had, from 1/replicas to 1.
  double busiest_share = 0;
};

/// Pure, as what follows.
ServedLoad SumServed(const PlacementTable& placement);

/// Who holds how much, and who served how much of it. `all`: every layer, service by service, each
/// expert with what was served of it there.
std::string FormatPlacementTable(const PlacementTable& placement, bool all);

/// The object of `moebius placement show --json`.
Json PlacementTableJson(const PlacementTable& placement);

}  // namespace moebius
