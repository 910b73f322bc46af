// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace moebius {

/// Flags of `moebius keys add | list | retire | remove`, as typed; filled when the line is parsed.
struct KeysFlags {
  std::string file;
  std::string client;
  std::optional<std::string> max_in_flight;
  std::optional<std::string> tokens_per_minute;
  bool json = false;
};

/// `flags` outlives the parse.
void AddKeys(CLI::App& app, KeysFlags& flags);

/// Runs the one under `keys` that was parsed, or prints their help. Returns the exit code.
int RunKeys(const CLI::App& keys_command, const KeysFlags& flags);

}  // namespace moebius
