// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/placement_case.h"
#include "cli/router_flags.h"

#include "moebius/api/placement_table.h"
#include "moebius/api/router_info.h"
#include "moebius/model/json.h"
#include "moebius/placement/rebalance.h"

namespace moebius {

/// `moebius placement show` and `apply` as typed.
struct PlacementLiveFlags {
  RouterCallFlags router;
  std::optional<std::string> move_budget;  // bytes, as 512MiB
  std::optional<std::string> out;          // a placement file to write
  bool dry_run = false;
  bool all = false;  // every layer, not the summary alone
  bool json = false;
};

/// The question that a router's placement and load are: each layer with experts over its services,
/// which keep their numbers of slots. `current` is what they hold.
/// FAILED_PRECONDITION where nothing has been routed yet, or the load is of another model.
absl::StatusOr<PlacementCase> CaseOf(const PlacementTable& placement, const ExpertLoadTable& load);

/// What would change at one service.
struct ServiceMoves {
  std::string name;
  int64_t held_bytes = 0;                            // now
  std::vector<std::pair<int32_t, int32_t>> loads;    // (layer, expert), ascending
  std::vector<std::pair<int32_t, int32_t>> unloads;  // (layer, expert), ascending
};

/// A plan for a router.
struct PlacementChange {
  PlacementCase question;
  Rebalance rebalance;
  std::vector<ServiceMoves> moves;  // by service
  int64_t moved_bytes = 0;
};

/// Pure. Failures as CaseOf and PlanRebalance.
absl::StatusOr<PlacementChange> PlanChange(const PlacementTable& placement,
                                           const ExpertLoadTable& load,
                                           std::optional<int64_t> budget_bytes);

/// The plan as a file for --placement: the table's own where nothing moves.
std::string FormatPlacementFile(const PlacementTable& placement, const PlacementChange& change);

std::string FormatChange(const PlacementTable& placement, const PlacementChange& change);
Json ChangeJson(const PlacementTable& placement, const PlacementChange& change);

/// Each runs the command and returns the exit code.
int RunPlacementShow(const PlacementLiveFlags& flags);
int RunPlacementApply(const PlacementLiveFlags& flags);

}  // namespace moebius
