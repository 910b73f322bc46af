// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

/// `moebius doctor`, as typed.
struct DoctorFlags {
  std::string model;
  std::optional<std::string> listen;  // HOST:PORT,HOST:PORT that processes would listen on
  RouterCallFlags router;             // of the cluster to look at
  std::optional<std::string> peers;   // HOST:PORT,HOST:PORT of HTTP ports
  bool json = false;
};

/// What is there on this host, and what would keep Moebius from running well; of `model` and
/// `listen` where the flags have them. Changes nothing. INVALID_ARGUMENT for a `listen` that is no
/// list of addresses.
absl::StatusOr<std::vector<DoctorCheck>> ExamineHost(const DoctorFlags& flags);

/// Prints the checks of this host or, where the flags name one, of a cluster. Exit code 3 where one
/// of the host's is a fault, 1 where one of the cluster's is.
int RunDoctor(const DoctorFlags& flags);

}  // namespace moebius
