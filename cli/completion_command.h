// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace moebius {

/// Of `moebius completion`, as typed; filled when the line is parsed.
struct CompletionFlags {
  std::string shell;  // bash, zsh or fish
};

/// `flags` outlives the parse.
void AddCompletion(CLI::App& app, CompletionFlags& flags);

/// Prints the script for a shell, made from the commands and flags of `app`, the whole program.
/// Returns the exit code.
int RunCompletion(const CLI::App& app, const CompletionFlags& flags);

}  // namespace moebius
