// SPDX-License-Identifier: Apache-2.0
// `moebius`: one command for everything a person does.
#include <string>
#include <vector>

#include "cli/command_line.h"

int main(int argc, char** argv) {
  return moebius::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc));
}
