// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/balance_command.h"
#include "cli/bench_flags.h"

namespace CLI {
class App;
}

namespace moebius {

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
