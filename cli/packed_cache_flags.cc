// SPDX-License-Identifier: Apache-2.0
#include "cli/packed_cache_flags.h"

#include <cstdlib>

#include "absl/strings/string_view.h"
#include "cli/command_flags.h"

#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"

namespace moebius {

NamedPackedCacheFlags NamesOf(const PackedCacheFlags& flags) {
  return {{{"--packed-cache", &flags.folder}, {"--packed-cache-limit", &flags.limit}}};
}

void AddPackedCacheFlags(CLI::App& command, PackedCacheFlags* flags) {
  AddTextFlags(command, {{"Machine", "--packed-cache", "DIR", &flags->folder,
                          "Keeps packed weights for the next start; else MOEBIUS_PACKED_CACHE"},
                         {"Machine", "--packed-cache-limit", "BYTES", &flags->limit,
                          "Of all its files, the oldest go first; what the disk has"}});
}

absl::StatusOr<PackedCacheOptions> ParsePackedCache(const PackedCacheFlags& flags) {
  PackedCacheOptions options;
  const char* const folder = std::getenv("MOEBIUS_PACKED_CACHE");
  options.folder = flags.folder.value_or(folder == nullptr ? "" : folder);
  const char* const variable = std::getenv("MOEBIUS_PACKED_CACHE_LIMIT");
  const absl::string_view place =
      flags.limit.has_value() ? "--packed-cache-limit" : "MOEBIUS_PACKED_CACHE_LIMIT";
  const std::string limit = flags.limit.value_or(variable == nullptr ? "" : variable);
  if (!limit.empty() && limit != "0") {
    MOEBIUS_ASSIGN_OR_RETURN(options.limit_bytes, ParseBytes(place, limit));
  }
  return options;
}

}  // namespace moebius
