// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moebius/api/route.h"
#include "moebius/api/router_info.h"
#include "moebius/model/tokenizer.h"

namespace moebius {

/// What is shown of a dry run beside the answer itself.
struct RouteView {
  int64_t max_tokens = 16;        // that have a line of their own
  int32_t num_nodes = 0;          // that the services are on, equally many each; 0: not told
  double capacity_factor = 1.25;  // whose drops are told; 0: none
};

/// The assignments and the dispatch of a dry run as people read them: a table of tokens with the
/// groups, services and nodes that they reach, a matrix of rows, the load of the experts, what a
/// capacity would drop. `tokenizer` may be null. Pure.
std::string FormatRoutePicture(const RouteAnswer& answer, const ModelInfo& model,
                               const Tokenizer* tokenizer, const RouteView& view);

/// The object of `moebius route --json`, one line. `dropped` is what the capacity of the view's
/// factor would drop where that is more than 0, else what the router's own did. Pure.
std::string FormatRouteJson(const RouteAnswer& answer, double capacity_factor);

}  // namespace moebius
