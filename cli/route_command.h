// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/router_flags.h"

namespace moebius {

/// `moebius route` as typed.
struct RouteFlags {
  std::string model;  // or a router
  RouterCallFlags router;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::string> prompt_ids;
  std::optional<std::string> layer;
  std::optional<std::string> experts;          // services to plan for
  std::optional<std::string> nodes;            // that the services are on
  std::optional<std::string> capacity_factor;  // whose drops are told
  std::optional<std::string> threads;
  bool all = false;
  bool json = false;
  bool quiet = false;
};

/// Runs the command and returns the exit code.
int RunRoute(const RouteFlags& flags);

/// `moebius experts` as typed: of a router, or of one answer of a model in this process.
struct ExpertsFlags {
  std::string model;
  RouterCallFlags router;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::string> prompt_ids;
  std::optional<std::string> max_tokens;
  std::optional<std::string> threads;
  bool json = false;
  bool quiet = false;
};

int RunExperts(const ExpertsFlags& flags);

}  // namespace moebius
