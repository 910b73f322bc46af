// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/capacity_flags.h"
#include "cli/packed_cache_flags.h"

namespace moebius {

/// `moebius serve` as typed. Numbers stay text until RunServe: they are refused with a sentence.
struct ServeFlags {
  std::string model;
  std::optional<std::string> experts;
  std::optional<std::string> attention;
  std::optional<std::string> replicas;
  std::optional<std::string> threads;
  std::optional<std::string> kv_budget;
  PackedCacheFlags packed_cache;
  std::optional<std::string> log_dir;
  std::optional<std::string> span;
  std::optional<std::string> group_fill;
  std::optional<std::string> attention_sum;
  std::optional<std::string> attention_layout;
  std::optional<std::string> dtype;
  std::optional<std::string> tier;
  std::optional<std::string> row_budget, chunk;
  std::optional<std::string> attention_method;
  std::optional<std::string> attention_rates;
  std::optional<std::string> transport;
  std::optional<std::string> placement;
  std::optional<std::string> certs;
  std::optional<std::string> listen;
  std::optional<std::string> advertise;
  bool insecure = false;
  CapacityFlags capacity;
  std::optional<std::string> bias_balancer;
  std::optional<std::string> bias_file;
  std::optional<std::string> api_keys;
  std::optional<std::string> trace_endpoint;
  std::optional<std::string> trace_sample_ratio;
  std::optional<std::string> trace_caller_rate;
  bool restart = false;
  bool json = false;
};

/// Starts a local cluster of real processes, prints where it can be reached, and stops all of them
/// on Ctrl-C. With --json a line for each event on stdout. Returns the exit code.
int RunServe(const ServeFlags& flags);

}  // namespace moebius
