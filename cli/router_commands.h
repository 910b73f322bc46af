// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cli/router_flags.h"

#include "moebius/api/router_info.h"

namespace moebius {

/// The commands that ask a router about itself, as typed.
struct RouterCommandFlags {
  RouterCallFlags router;
  std::string request_id;                // of explain
  std::optional<std::string> name;       // of health: "liveness"; absent: readiness
  std::optional<std::string> wait_time;  // of wait; absent: 60s
  bool limits = false;                   // of status: also the table of bounds
  std::string expert;                    // of drain: HOST:PORT of its admin port
  bool json = false;
};

/// Each runs the command and returns the exit code. `health` and `wait` end with 1 when the router
/// is not well (in time), and say what is missing.
int RunStatus(const RouterCommandFlags& flags);
int RunHealth(const RouterCommandFlags& flags);
int RunWait(const RouterCommandFlags& flags);
int RunExplain(const RouterCommandFlags& flags);
/// Of an expert service: 1 when rows were still under way in the end.
int RunDrain(const RouterCommandFlags& flags);

// What they print. Pure.
std::string FormatStatus(absl::string_view target, const ModelInfo& model, const ServerInfo& server,
                         bool with_limits);
std::string FormatStatusJson(const ModelInfo& model, const ServerInfo& server);
std::string FormatExplanation(const Explanation& explanation);
std::string FormatExplanationJson(const Explanation& explanation);

}  // namespace moebius
