// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moebius/api/generate.h"

/// Dry runs of one layer's routing, and the experts of one layer as a service. Field by field as in
/// proto/moebius/api/router/v1/router.proto.
namespace moebius {

struct RouteRequest {
  std::vector<int64_t> token_ids;
  int32_t layer = 0;
  std::optional<int32_t> num_services;  // plan for so many instead of those that are there
};

/// What one expert service gets and answers.
struct RoutedService {
  std::string name;
  std::vector<int32_t> experts;  // routed experts of the layer that it holds, ascending
  int64_t rows_sent = 0;
  int64_t reply_rows = 0;
};

/// Where the last expert that was chosen and the first that was not were nearest to each other.
struct ClosestTie {
  int64_t token_index = 0;
  int32_t chosen_expert = 0;
  int32_t next_expert = 0;
  float gap = 0;  // of their selection scores, >= 0
};

/// T tokens, k experts each, of E.
struct RouteAnswer {
  int32_t layer = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t num_groups = 1;
  int32_t num_kept_groups = 1;
  std::vector<int64_t> token_ids;   // [T]
  std::vector<int32_t> expert_ids;  // [T, k], strongest first
  std::vector<float> weights;       // [T, k]
  std::vector<RoutedService> services;
  int64_t row_bytes = 0;
  int64_t shared_rows_sent = 0;   // beyond those of `services`, for shared experts
  int64_t shared_reply_rows = 0;  // the same, back
  std::vector<int64_t> load;      // [E]
  std::vector<int64_t> dropped;   // [E]
  std::vector<int64_t> rerouted;  // [E]
  int64_t group_fill_mismatches = 0;
  std::optional<ClosestTie> closest_tie;

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t rows_sent() const {
    int64_t sum = 0;
    for (const RoutedService& service : services) sum += service.rows_sent;
    return sum;
  }
  int64_t reply_rows() const {
    int64_t sum = 0;
    for (const RoutedService& service : services) sum += service.reply_rows;
    return sum;
  }
};

struct ForwardRequest {
  int32_t layer = 0;
  int64_t num_rows = 0;
  int64_t hidden_size = 0;
  std::string config_hash;  // empty: any
  std::string traceparent;  // as GenerateRequest has it
  std::string rows;         // [num_rows, hidden_size] bf16, little-endian
};

struct ForwardAnswer {
  int64_t num_rows = 0;
  int64_t hidden_size = 0;
  int64_t assignments = 0;
  Exactness exactness;
  std::string rows;  // [num_rows, hidden_size] bf16, little-endian
};

}  // namespace moebius
