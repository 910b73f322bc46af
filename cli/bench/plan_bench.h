// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/report.h"

namespace moebius {

/// A layer as DeepSeek-V3 has it, and a cluster that serves it.
struct PlanBenchOptions {
  int64_t num_rows = 4096;
  int32_t num_experts = 256;
  int32_t top_k = 8;
  int32_t num_services = 32;
  int64_t hidden_size = 64;  // of the rows that are combined
  absl::Duration duration = absl::Milliseconds(200);
  int repetitions = 5;
};

absl::Status ValidateOptions(const PlanBenchOptions& options);

/// What a router pays per assignment to plan a layer's dispatch and to combine its replies, on one
/// core, against the limit of 150 ns.
absl::StatusOr<BenchReport> RunPlanBench(
    const PlanBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress);

}  // namespace moebius
