// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/placement/balance.h"

namespace moebius {

/// A question to `moebius placement plan`, several layers over the same devices.
struct PlacementCase {
  std::string name;
  std::vector<BalanceProblem> problems;  // by layer
  std::vector<BalancedLayer> current;    // by layer; empty: nothing is placed yet
  std::optional<int64_t> expert_bytes;   // of one expert's weights
  std::vector<std::string> ignored;      // keys that mean nothing here
};

/// Reads {"load": [[…]…], "num_replicas", "num_devices", and optionally "num_groups" and
/// "num_nodes" (1), "name", "device_slots" [num_devices] (instead of num_replicas), "current"
/// [[…]…] (experts of the slots, -1 for an empty one), "expert_bytes"}. Where the devices do not
/// divide the replicas, the first ones get one slot more. A file that is an array of cases needs
/// `name`. INVALID_ARGUMENT names what is missing or wrong; NOT_FOUND names the cases that there
/// are.
absl::StatusOr<PlacementCase> ParsePlacementCase(absl::string_view text, absl::string_view source,
                                                 const std::string& name);

}  // namespace moebius
