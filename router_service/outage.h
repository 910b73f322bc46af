// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace moebius {

/// How long steps wait for missing services. One outage has one budget, however many steps fail in
/// it: a session that needs what is missing waits for `max_duration` at most, also behind others.
/// Time comes in as an argument. Not thread-safe.
class Outage {
 public:
  explicit Outage(absl::Duration max_duration) : max_duration_(max_duration) {}

  /// A step missed a service at `now`. True while it is worth waiting for it.
  bool OnMissed(absl::Duration now) {
    if (!began_.has_value()) began_ = now;
    return now - *began_ < max_duration_;
  }
  bool is_open() const { return began_.has_value(); }
  /// Every service is there again.
  void End() { began_.reset(); }

 private:
  const absl::Duration max_duration_;
  std::optional<absl::Duration> began_;
};

}  // namespace moebius
