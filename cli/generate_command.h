// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/capacity_flags.h"
#include "cli/packed_cache_flags.h"
#include "cli/router_flags.h"

#include "moebius/api/generate.h"
#include "node/embedded.h"

namespace moebius {

/// `moebius generate` as typed. Numbers stay text until ParseGenerateFlags: they are read without
/// the locale and refused with a sentence.
struct GenerateFlags {
  std::string model;  // or a router
  RouterCallFlags router;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::string> prompt_ids;
  std::optional<std::string> max_tokens;
  std::optional<std::string> temperature;
  std::optional<std::string> top_k;
  std::optional<std::string> top_p;
  std::optional<std::string> min_p;
  std::optional<std::string> repetition_penalty;
  std::optional<std::string> presence_penalty;
  std::optional<std::string> frequency_penalty;
  std::vector<std::string> logit_bias;  // "ID:BIAS"
  std::optional<std::string> seed;
  std::optional<std::string> request_id;
  std::optional<std::string> traceparent;
  std::optional<std::string> priority;
  std::optional<std::string> deadline;
  std::vector<std::string> stop;
  std::vector<std::string> stop_token_ids;
  std::optional<std::string> logprobs;
  bool ignore_eos = false;
  std::optional<std::string> threads;
  std::optional<std::string> tier;
  std::optional<std::string> span;
  std::optional<std::string> group_fill;
  std::optional<std::string> attention_sum;
  std::optional<std::string> attention_layout;
  std::optional<std::string> dtype;
  std::optional<std::string> kv_budget;
  std::optional<std::string> chunk;
  std::optional<std::string> expert_pipelines;
  PackedCacheFlags packed_cache;
  CapacityFlags capacity;
  bool json = false;
  bool verbose = false;
  bool quiet = false;
};

/// The same with every value read. INVALID_ARGUMENT is a usage error.
struct GenerateArguments {
  EmbeddedOptions node;                 // of a model in this process
  std::optional<ClientOptions> router;  // or who is asked
  GenerateRequest request;              // without token ids
};
absl::StatusOr<GenerateArguments> ParseGenerateFlags(const GenerateFlags& flags);

/// Runs the command and returns the exit code. Text goes to stdout as it comes (with --json one
/// object at the end), everything else to stderr.
int RunGenerate(const GenerateFlags& flags);

}  // namespace moebius
