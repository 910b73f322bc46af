// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/balance_command.h"

namespace CLI {
class App;
}

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

/// The benchmarks' flags. They are filled when the line is parsed and must outlive that.
struct BenchCommandFlags {
  BenchTransportFlags transport;
  BenchExpertsFlags experts;
  BenchAttentionFlags attention;
  BenchClusterFlags cluster;
  BenchLoadFlags load;
  BenchPlanFlags plan;
  BenchBalanceFlags balance;
};

/// Adds `moebius bench` with a command for each benchmark.
void AddBenchCommands(CLI::App& app, BenchCommandFlags& flags);

/// Runs the command that was named and returns the exit code. A missed target is no failure: it is
/// in the table.
int RunBenchCommand(const CLI::App& bench_command, const BenchCommandFlags& flags);

}  // namespace moebius
