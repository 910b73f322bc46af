// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "moebius/api/generate.h"
#include "moebius/api/sampling.h"
#include "moebius/api/step_figures.h"

/// What a router says of itself. Field by field as in proto/moebius/api/router/v1/router.proto,
/// which has the meaning of those that are not explained here.
namespace moebius {

struct ModelInfo {
  std::string name;
  std::string architecture;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  std::vector<int32_t> moe_layers;
  int64_t max_positions = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int64_t num_shared_experts = 0;
  int32_t num_groups = 1;
  int32_t num_kept_groups = 1;
  std::string score_function;
  bool has_correction_bias = false;
  float routed_scaling_factor = 1;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> bos_token_id;
  std::string tokenizer;  // "bytes"; empty: none
  std::string config_hash;
  std::string model_hash;
  std::string numeric_class;
  std::string dtype;
  SamplingParams default_sampling;
};

/// A bound on what callers may ask, and the status code that they get beyond it.
struct Limit {
  std::string name;
  int64_t value = 0;
  std::string code;
  std::string description;
};

/// One process as the router sees it.
struct ServiceState {
  std::string name;
  std::string role;
  std::string state;
  std::string address;
  std::string detail;
  std::string http_address;  // of /metrics and probes; empty: none
};

struct ServerInfo {
  std::string version;
  double uptime_seconds = 0;
  std::string topology;
  bool ready = false;
  std::vector<std::string> missing;  // in words
  uint64_t epoch = 0;
  std::string tier;
  int32_t threads = 0;
  std::vector<ServiceState> services;
  std::vector<Limit> limits;
  int64_t queued_requests = 0;
  int64_t running_requests = 0;
  int64_t kv_capacity_tokens = 0;
  int64_t kv_reserved_tokens = 0;
  int64_t requests_total = 0;
  int64_t rejected_total = 0;
  int64_t failed_total = 0;
  int64_t cancelled_total = 0;
  int64_t prompt_tokens_total = 0;
  int64_t generated_tokens_total = 0;
  StepFigures figures;
  std::string capacity;               // of experts, in words; empty: dropless
  std::vector<std::string> warnings;  // what had better be otherwise, with what to do
};

/// Assignments of L layers and E routed experts since the router began.
struct ExpertLoadTable {
  std::vector<int32_t> layer_ids;  // [L], ascending
  int32_t num_experts = 0;         // E
  std::vector<int64_t> demand;     // [L, E]
  std::vector<int64_t> dropped;    // [L, E]
  std::vector<int64_t> active;     // [L], experts that had rows in the last step
  bool has_capacity = false;       // without one nothing is ever dropped
};

enum class RequestState { kQueued, kRunning, kFinished, kFailed };

/// How a request stands or went.
struct Explanation {
  std::string request_id;
  std::string trace_id;  // 32 hexadecimal digits; empty: none, and on the wire always
  std::string caller;    // as GenerateRequest has it; empty on the wire always
  RequestState state = RequestState::kQueued;
  double age_seconds = 0;
  absl::Status failure;  // OK unless kFailed
  GenerateEvent last;    // without token ids and logarithms
};

}  // namespace moebius
