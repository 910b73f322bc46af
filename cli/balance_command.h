// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace moebius {

/// `moebius bench balance` as typed.
struct BenchBalanceFlags {
  std::string model;  // empty: synthetic gates alone
  std::optional<std::string> prompt_file;
  std::optional<std::string> updates;
  std::optional<std::string> gamma;
  std::optional<std::string> svg_out;
  std::string json_out;
  bool json = false;
  bool quiet = false;
};

/// Adds the command to `bench`.
CLI::App* AddBenchBalance(CLI::App& bench_command, BenchBalanceFlags& flags);

/// Runs the command and returns the exit code.
int RunBenchBalance(const BenchBalanceFlags& flags);

}  // namespace moebius
