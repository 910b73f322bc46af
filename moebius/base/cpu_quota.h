// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace moebius {

/// CPUs that a cgroup's quota allows, from the text of its files: v2's cpu.max ("200000 100000" or
/// "max 100000"). No value where there is no limit or the text is not of that form. Pure.
std::optional<double> CpusOfCgroupV2(absl::string_view cpu_max);

/// The same from v1's cpu.cfs_quota_us (-1: no limit) and cpu.cfs_period_us. Pure.
std::optional<double> CpusOfCgroupV1(absl::string_view quota_us, absl::string_view period_us);

/// The smallest quota that holds for this process: of its own cgroup and of all above it, as they
/// are mounted below `root` ("" on a machine, a folder in tests). The process's path is read from
/// `root`/proc/self/cgroup; in a container, where that path is not mounted, the mount's top counts.
std::optional<double> CpuQuota(const std::string& root);

/// Threads for `affinity_cpus` (>= 1) CPUs under `quota`: min(affinity, ceil(quota)), at least 1.
int NumThreadsFor(int affinity_cpus, std::optional<double> quota);

}  // namespace moebius
