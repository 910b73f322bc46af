// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/router_flags.h"

namespace moebius {

enum class CheckState { kOk, kWarning, kFault };

/// One thing that was looked at.
struct DoctorCheck {
  std::string name;
  CheckState state = CheckState::kOk;
  std::string detail;
  std::string hint;  // what to do; empty where all is well
};

/// What is there on this host, and what would keep Moebius from running well. `model` adds whether
/// that folder would be taken and fits; empty leaves it out. Changes nothing.
std::vector<DoctorCheck> ExamineHost(const std::string& model);

/// `moebius doctor`, as typed.
struct DoctorFlags {
  std::string model;
  RouterCallFlags router;            // of the cluster to look at
  std::optional<std::string> peers;  // HOST:PORT,HOST:PORT of HTTP ports
  bool json = false;
};

/// Prints the checks of this host or, where the flags name one, of a cluster. Exit code 3 where one
/// of the host's is a fault, 1 where one of the cluster's is.
int RunDoctor(const DoctorFlags& flags);

}  // namespace moebius
