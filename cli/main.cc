// SPDX-License-Identifier: Apache-2.0
// `moebius`: one command for everything a person does.
#include <string>
#include <vector>

#include "cli/command_line.h"

#include "moebius/base/process.h"

int main(int argc, char** argv) {
  moebius::PrepareProcess();
  // Without a first word there is no name of the program either.
  const std::vector<std::string> arguments(argc > 0 ? argv + 1 : argv, argv + argc);
  return moebius::FinishOutput(moebius::RunCommandLine(arguments));
}
