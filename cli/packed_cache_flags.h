// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "moebius/model/packed_cache.h"

namespace CLI {
class App;
}

namespace moebius {

/// Where packed weights are kept between starts, as typed.
struct PackedCacheFlags {
  std::optional<std::string> folder;
  std::optional<std::string> limit;
};

/// Each flag with what was given for it.
using NamedPackedCacheFlags =
    std::array<std::pair<const char*, const std::optional<std::string>*>, 2>;
NamedPackedCacheFlags NamesOf(const PackedCacheFlags& flags);

/// --packed-cache, --packed-cache-limit.
void AddPackedCacheFlags(CLI::App& command, PackedCacheFlags* flags);

/// The flags, and for what is absent MOEBIUS_PACKED_CACHE and MOEBIUS_PACKED_CACHE_LIMIT.
/// INVALID_ARGUMENT names the flag or the variable.
absl::StatusOr<PackedCacheOptions> ParsePackedCache(const PackedCacheFlags& flags);

}  // namespace moebius
