// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/placement_case.h"

#include "moebius/model/json.h"
#include "moebius/placement/balance.h"

namespace moebius {

/// `moebius placement plan` as typed.
struct PlacementPlanFlags {
  std::optional<std::string> mode;         // "balanced" (where absent) or "eplb"
  std::optional<std::string> case_file;    // "-": standard input
  std::optional<std::string> name;         // of the case, where the file has several
  std::optional<std::string> move_budget;  // bytes, as 512MiB
  bool json = false;
};

enum class PlacementMode { kBalanced, kEplb };

/// An answer to a case. `loaded` is absent where nothing is placed yet.
struct PlacementAnswer {
  PlacementMode mode = PlacementMode::kBalanced;
  std::vector<BalancedLayer> layers;
  std::optional<int64_t> loaded;  // replicas that devices have to load
  bool limited = false;           // the move budget kept it from more
};

/// Plans all layers of a case. `max_loaded` bounds the replicas that move; it needs a current
/// placement. INVALID_ARGUMENT as the planners, with the layer.
absl::StatusOr<PlacementAnswer> PlanCase(const PlacementCase& question, PlacementMode mode,
                                         std::optional<int64_t> max_loaded);

/// How many replicas --move-budget lets move; absent without it. INVALID_ARGUMENT where the case
/// does not say what is placed now, or how large an expert is.
absl::StatusOr<std::optional<int64_t>> ParseMoveBudget(const PlacementPlanFlags& flags,
                                                       const PlacementCase& question);

/// {physical_to_logical, replica_count, max_over_mean, lower_bound}, an array of layers each.
Json PlacementJson(const PlacementCase& question, const PlacementAnswer& answer);
/// Balance before, after and at best, layer by layer, and what moves.
std::string FormatPlacement(const PlacementCase& question, const PlacementAnswer& answer);

/// Runs the command and returns the exit code.
int RunPlacementPlan(const PlacementPlanFlags& flags);

}  // namespace moebius
