// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cli/router_flags.h"

#include "moebius/api/router_info.h"

namespace moebius {

/// `moebius top`, as typed.
struct TopFlags {
  RouterCallFlags router;
  std::optional<std::string> interval;  // absent: 1s
  std::optional<std::string> count;     // frames; absent: until q on a terminal, else one
  bool json = false;
};

/// Shows a router again and again; returns the exit code.
int RunTop(const TopFlags& flags);

/// Two looks at a router, and what they tell together.
struct TopFrame {
  std::string target;
  ModelInfo model;
  ServerInfo before;
  ServerInfo now;
  ExpertLoadTable load;  // now
  double seconds = 0;    // between the looks; 0: there was none before
};

/// What one frame shows: exactness and conservation first, then who is missing, requests and rates,
/// what bounds the router, the services, the load of every expert. Pure.
std::string FormatTop(const TopFrame& frame);
/// The same as one line of JSON. Pure.
std::string FormatTopJson(const TopFrame& frame);

}  // namespace moebius
