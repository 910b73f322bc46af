// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/attention_bench.h"
#include "cli/bench/cluster_bench.h"
#include "cli/bench/expert_bench.h"
#include "cli/bench/load_bench.h"
#include "cli/bench/plan_bench.h"
#include "cli/bench/transport_bench.h"

namespace moebius {

/// Flags that every benchmark has, as typed; empty: the default.
struct BenchFlags {
  std::string seconds;
  std::string repetitions;
  std::string json_out;
  std::vector<std::string> compare;  // none, or two files
  bool json = false;
  bool quiet = false;
};

struct BenchTransportFlags {
  BenchFlags common;
  std::string transports;
  std::string sizes;
  std::string serve;  // the far end of a measurement, started by the near one
};

struct BenchExpertsFlags {
  BenchFlags common;
  std::string rows, tiers, dtype, threads;
  std::string hidden, intermediate, experts, top_k;
  std::vector<std::string> peers;
};

struct BenchAttentionFlags {
  BenchFlags common;
  std::string tokens, keys, query_heads, kv_heads, head_dim, tiers, threads;
  std::vector<std::string> peers;
};

struct BenchClusterFlags {
  BenchFlags common;
  std::string model;
  std::string transports, experts, attention, threads, rows, tokens;
};

struct BenchLoadFlags {
  BenchFlags common;
  std::string model;
  std::string packed_cache, threads;
};

struct BenchPlanFlags {
  BenchFlags common;
  std::string rows, experts, top_k, services, hidden;
};

/// What the flags of a benchmark ask for. INVALID_ARGUMENT names the flag and what it takes.
absl::StatusOr<TransportBenchOptions> ParseOptions(const BenchTransportFlags& flags);
absl::StatusOr<ExpertBenchOptions> ParseOptions(const BenchExpertsFlags& flags);
absl::StatusOr<AttentionBenchOptions> ParseOptions(const BenchAttentionFlags& flags);
absl::StatusOr<ClusterBenchOptions> ParseOptions(const BenchClusterFlags& flags);
absl::StatusOr<LoadBenchOptions> ParseOptions(const BenchLoadFlags& flags);
absl::StatusOr<PlanBenchOptions> ParseOptions(const BenchPlanFlags& flags);

}  // namespace moebius
