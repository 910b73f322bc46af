// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace moebius {

/// Memory that this process may use, and who says so.
struct HostMemory {
  int64_t limit_bytes = 0;      // the smallest of the machine's memory and every cgroup limit
  int64_t available_bytes = 0;  // of the machine, now
  std::string source;           // "machine", "cgroup v2 /sys/fs/cgroup/…", …
};

/// Reads /proc/meminfo and the memory limits of the process's cgroup (v1 and v2) and of all above
/// it, as they are mounted below `root` ("" on a machine, a folder in tests).
HostMemory ReadHostMemory(const std::string& root = "");

/// KV pool when nobody says: a quarter of the limit, at most 8 GiB. The rest is for weights and for
/// the page cache that loads them.
int64_t DefaultKvBudgetBytes(const HostMemory& memory);

/// RESOURCE_EXHAUSTED with all three figures when weights and KV pool pass the limit; OK where no
/// limit is known.
absl::Status CheckFits(const HostMemory& memory, int64_t weight_bytes, int64_t kv_bytes);

}  // namespace moebius
