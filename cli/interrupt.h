// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

/// While it lives, the first Ctrl-C (SIGINT) or SIGTERM only raises a flag; a second one ends the
/// process as if nobody had asked. One at a time per process.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// Whether the user asked to stop.
  static bool Requested();
};

}  // namespace moebius
