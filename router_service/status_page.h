// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

#include "moebius/api/router_info.h"
#include "router_service/lead_meter.h"
#include "router_service/load_history.h"

namespace moebius {

/// What the page tells, at one moment.
struct StatusFacts {
  std::string name;  // of the router
  ModelInfo model;
  ServerInfo server;
  LeadCounters counters;
  ExpertLoadTable load;
  size_t layer = 0;   // index into load.layer_ids: whose history is shown
  LoadWindow window;  // of that layer
};

/// The index of the layer that a query "layer=3" names, else of the one with the highest max/mean;
/// 0 where there is none.
size_t LayerOfQuery(absl::string_view query, const ExpertLoadTable& load);

/// One page of HTML and SVG without scripts or anything from elsewhere, which loads itself again
/// every two seconds. Texts of others are escaped. Pure.
std::string RenderStatusPage(const StatusFacts& facts);

}  // namespace moebius
