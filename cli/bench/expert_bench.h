// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/ffn_workload.h"
#include "cli/bench/report.h"

#include "moebius/kernels/tier.h"

namespace moebius {

struct ExpertBenchOptions {
  FfnShape shape;
  WeightType type = WeightType::kBf16;  // kFp8: beside bf16, call by call
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 128, 512};
  std::vector<Tier> tiers;         // the best of this host, where empty
  std::vector<std::string> peers;  // commands; the first that knows a GEMM gives its ceiling
  int num_threads = 0;             // DefaultNumThreads()
  absl::Duration duration = absl::Milliseconds(200);  // of one measurement
  int repetitions = 5;
};

/// INVALID_ARGUMENT with a hint for what cannot be measured; what this host has no memory for too.
absl::Status ValidateOptions(const ExpertBenchOptions& options);

/// What a tier promises for a number of rows, as a part of the roofline; nothing where nothing is
/// promised. `is_best`: of the tiers of the host. Pure.
std::optional<double> ExpertFfnTarget(Tier tier, bool is_best, int64_t num_rows);

/// Of the throughputs of 1 … 32 rows, ascending: the smallest step from one to the next. Below 1
/// more rows take longer than in two calls of fewer. Pure.
double SmallestStep(const std::vector<double>& throughputs);

/// One MoE layer's experts, for each tier and number of rows, beside the roofline of the same
/// moment: read bandwidth measured here, and the peers' GEMM where there is one. `progress` is told
/// before each measurement how many are done, of how many, and which is next.
absl::StatusOr<BenchReport> RunExpertBench(
    const ExpertBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress);

}  // namespace moebius
