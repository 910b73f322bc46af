// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/router_flags.h"

#include "moebius/api/bias.h"
#include "moebius/model/json.h"

namespace CLI {
class App;
}

namespace moebius {

/// `moebius bias show | set | reset` as typed.
struct BiasFlags {
  RouterCallFlags router;
  std::optional<std::string> admin;             // HOST:PORT, of set and reset
  std::optional<std::string> file;              // of set
  std::optional<std::string> expected_version;  // of set and reset
  bool all = false;                             // every bias, not the summary alone
  bool json = false;
};

/// Adds bias show, set and reset. `flags` outlives the parse.
void AddBiasCommands(CLI::App& app, BiasFlags& flags);

/// Runs the one that was parsed; its help where none was.
int RunBiasCommand(const CLI::App& command, const BiasFlags& flags);

/// {"layers": [{"layer": 1, "bias": [0.1, -0.1]}, …]}, as `bias show --json` prints it; other
/// members play no part. INVALID_ARGUMENT with `source`.
absl::StatusOr<BiasUpdate> ParseBiasUpdate(absl::string_view text, absl::string_view source);

// What they print. Pure.
std::string FormatBiases(const BiasTable& table, bool all);
Json BiasesJson(const BiasTable& table);

}  // namespace moebius
