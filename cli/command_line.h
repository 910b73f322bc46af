// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moebius {

/// The whole of `moebius`: parses the command line, runs the command, returns the exit code.
/// Unknown commands and flags are refused with the nearest known word, before anything starts.
int RunCommandLine(const std::vector<std::string>& arguments);

}  // namespace moebius
