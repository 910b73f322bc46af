// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace moebius {

/// OK when `key` is the private key of the first certificate in `cert`, both PEM; else
/// INVALID_ARGUMENT that names the file. A key that needs a passphrase is refused, not asked for.
/// Thread-safe.
absl::Status CheckKeyPair(const std::string& cert_file, const std::string& cert,
                          const std::string& key_file, const std::string& key);

/// What read() gives, a StatusOr; while that is INVALID_ARGUMENT it is tried again, for half a
/// second: a rotation replaces one file after the other, and in between they do not belong
/// together. For starts, which have nothing else to go on with.
template <typename Read>
auto ReadSettled(Read read) {
  constexpr int kLooks = 10;
  constexpr absl::Duration kBetween = absl::Milliseconds(50);
  auto result = read();
  for (int look = 1; look < kLooks && absl::IsInvalidArgument(result.status()); ++look) {
    absl::SleepFor(kBetween);
    result = read();
  }
  return result;
}

}  // namespace moebius
