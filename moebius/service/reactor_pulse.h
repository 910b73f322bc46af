// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "moebius/base/mutex.h"
#include "moebius/telemetry/health.h"
#include "moebius/transport/reactor.h"

namespace moebius {

/// Whether a reactor still runs: each look asks it for a sign of life, and one that never gives it
/// has stood still since. Reactions neither compute nor wait, least of all for another process: so
/// this is a fact about this process alone. Thread-safe; a look does not block.
class ReactorPulse : public std::enable_shared_from_this<ReactorPulse> {
 public:
  /// Borrows `reactor` until Detach.
  explicit ReactorPulse(Reactor& reactor) : reactor_(&reactor) {}

  /// For Health::WatchLoop.
  LoopProgress Look() MOEBIUS_EXCLUDES(mutex_);
  /// The reactor goes: from now on there is nothing to look at.
  void Detach() MOEBIUS_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  Reactor* reactor_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_asked_ MOEBIUS_GUARDED_BY(mutex_) = false;  // and has not answered
  uint64_t num_signs_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace moebius
