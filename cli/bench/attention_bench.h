// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/report.h"

#include "moebius/kernels/tier.h"

namespace moebius {

struct AttentionBenchOptions {
  int64_t prefill_tokens = 8192;
  int64_t decode_tokens = 32768;  // keys of the row that is generated
  int32_t query_heads = 16;
  int32_t kv_heads = 4;
  int32_t head_dim = 128;
  std::vector<Tier> tiers;         // the best of this host, where empty
  std::vector<std::string> peers;  // commands; the first that knows a GEMM gives its ceiling
  int num_threads = 0;             // DefaultNumThreads()
  absl::Duration duration = absl::Milliseconds(400);  // of one measurement
  int repetitions = 5;
};

/// INVALID_ARGUMENT with a hint for what cannot be measured.
absl::Status ValidateOptions(const AttentionBenchOptions& options);

/// What a tier promises of a large GEMM's rate in prefill; nothing for tiers that promise nothing.
/// Pure.
std::optional<double> AttentionPrefillTarget(Tier tier, bool is_best);

/// One layer's attention for each tier: causal prefill in steps of 512 rows as useful FLOP/s,
/// beside the peers' large bf16 GEMM where there is one, and a generated row over many keys as
/// bytes of keys and values per second, each counted once, beside the read bandwidth of the same
/// moment; and a prompt in one step over four ranks of this process, on the same threads as one
/// rank, beside one rank and beside the per-degree sum.
absl::StatusOr<BenchReport> RunAttentionBench(
    const AttentionBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress);

}  // namespace moebius
