// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/bench/report.h"

namespace moebius {

/// A model to load again and again.
struct LoadBenchOptions {
  std::string model;
  std::string folder;   // of the packed cache; empty: one beside the system's temporary files
  int num_threads = 0;  // 0: all that the process may use
  int repetitions = 5;
};

absl::Status ValidateOptions(const LoadBenchOptions& options);

/// How long an embedded node takes to open, from the checkpoint and from a warm packed cache by
/// turns, with the checkpoint's files in the page cache; and the first start, which fills the
/// cache. The cache's files are removed from the folder that was made for it.
absl::StatusOr<BenchReport> RunLoadBench(
    const LoadBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress);

}  // namespace moebius
