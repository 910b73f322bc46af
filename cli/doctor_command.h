// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

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

/// Prints the checks. Exit code 3 where one is a fault.
int RunDoctor(const std::string& model, bool json);

}  // namespace moebius
