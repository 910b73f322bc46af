// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"

#include "moebius/base/mutex.h"

namespace moebius {

/// How many connections of a listener are open, in all and of each process.
///
/// Thread-safe; connections may outlive it.
class ShmConnections {
 public:
  ShmConnections(uint32_t max_connections, uint32_t max_per_process);

  /// Counts one more of `pid` until what is returned is let go. A process of another process
  /// namespace has no number of its own (pid 0): only the bound of all holds for it.
  /// RESOURCE_EXHAUSTED naming the bound that was met.
  absl::StatusOr<std::shared_ptr<void>> Add(pid_t pid);

 private:
  struct Counts {
    Mutex mutex;
    uint32_t open MOEBIUS_GUARDED_BY(mutex) = 0;
    std::map<pid_t, uint32_t> by_process MOEBIUS_GUARDED_BY(mutex);  // none of 0
  };
  const uint32_t max_connections_;
  const uint32_t max_per_process_;
  const std::shared_ptr<Counts> counts_;
};

}  // namespace moebius
