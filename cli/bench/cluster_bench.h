// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/bench/report.h"

#include "moebius/model/model_config.h"

namespace moebius {

struct ClusterBenchOptions {
  std::string model;  // a folder
  std::vector<std::string> transports = {"grpc", "shm"};
  int32_t num_experts = 4;     // services
  int32_t num_attention = 2;   // ranks
  int num_threads = 0;         // of the host; DefaultNumThreads()
  int64_t prefill_rows = 512;  // of a prompt, all in one step; fewer where the context is shorter
  int64_t decode_tokens = 64;
  int repetitions = 3;
};

absl::Status ValidateOptions(const ClusterBenchOptions& options);

/// Bytes of hidden rows that one token's layers would send to experts and take back if each of its
/// experts got a message of its own and answered with a row: what most expert-parallel protocols
/// do. Pure.
int64_t NaiveRowBytes(const ModelConfig& config);

/// The model on a cluster of real processes on this host (`moebius serve`), for each transport,
/// beside the same model in this process on the same cores: tokens per second, the time of a MoE
/// layer, what a layer costs outside kernels, and the bytes of its rows beside those of a protocol
/// with one message per expert.
absl::StatusOr<BenchReport> RunClusterBench(
    const ClusterBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress);

}  // namespace moebius
