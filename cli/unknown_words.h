// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace CLI {
class App;
}

namespace moebius {

/// Walks the words as CLI11 will, and refuses the first command or flag that nobody knows, with the
/// nearest one that is known; a flag at the end that lacks its value, too. `help` is the command as
/// typed so far: "moebius model".
absl::Status FindUnknownWords(const CLI::App& app, absl::Span<const std::string> words,
                              const std::string& help);

/// "moebius model inspect": the command that the words name, as far as they name one.
std::string CommandPath(const CLI::App& app, absl::Span<const std::string> words);

}  // namespace moebius
