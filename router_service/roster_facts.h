// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moebius/base/strong_id.h"
#include "router_service/lead_front.h"
#include "router_service/roster.h"

namespace moebius {

/// The router's own line among the services.
struct OwnService {
  std::string name;
  std::string data_address;
  std::string http_address;
};

/// Who is in the cluster, in the API's words: the router first, then all slots. `missing`: what
/// keeps it from serving.
RosterFacts DescribeRoster(const Roster& roster, const OwnService& own, Epoch epoch,
                           std::vector<std::string> missing);

}  // namespace moebius
