// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

namespace CLI {
class App;
}

namespace moebius {

struct CapacityText;

/// How much each expert takes of a step, as typed.
struct CapacityFlags {
  std::optional<std::string> factor;
  std::optional<std::string> by;
  std::optional<std::string> overflow;
  std::optional<std::string> min;
};

/// Each flag with what was given for it.
using NamedCapacityFlags = std::array<std::pair<const char*, const std::optional<std::string>*>, 4>;
NamedCapacityFlags NamesOf(const CapacityFlags& flags);

/// --capacity-factor, --capacity-by, --capacity-overflow, --min-capacity.
void AddCapacityFlags(CLI::App& command, CapacityFlags* flags);

/// For ParseCapacity.
CapacityText TextOf(const CapacityFlags& flags);

}  // namespace moebius
