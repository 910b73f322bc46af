// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/route_command.h"
#include "cli/router_commands.h"
#include "cli/top_command.h"

namespace CLI {
class App;
}

namespace moebius {

/// The flags of the commands on routing and on routers, filled when the line is parsed.
struct RouterCommandLine {
  RouteFlags route;
  ExpertsFlags experts;
  TopFlags top;
  RouterCommandFlags command;  // of status, health, wait, explain and drain
};

/// Adds route, experts, top, status, health, wait, explain and drain. `line` outlives the parse.
void AddRouterCommands(CLI::App& app, RouterCommandLine& line);

/// Runs the one that was parsed; nothing where none was.
std::optional<int> RunRouterCommand(const CLI::App& app, const RouterCommandLine& line);

}  // namespace moebius
