// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/placement_command.h"
#include "cli/placement_live.h"

namespace CLI {
class App;
}

namespace moebius {

/// The flags of `moebius placement …`, filled when the line is parsed.
struct PlacementCommandLine {
  PlacementPlanFlags plan;
  PlacementLiveFlags live;
};

/// Adds placement show, plan and apply. `line` outlives the parse.
void AddPlacementCommands(CLI::App& app, PlacementCommandLine& line);

/// Runs the one that was parsed; its help where none was.
int RunPlacementCommand(const CLI::App& command, const PlacementCommandLine& line);

}  // namespace moebius
