// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/model/checkpoint.h"

namespace moebius {

/// Parameters of one kind.
struct KindSummary {
  std::string kind;  // "routed experts", "attention", …
  int64_t num_tensors = 0;
  int64_t num_parameters = 0;
  uint64_t stored_bytes = 0;
};

/// Tensors that are stored in one type.
struct TypeSummary {
  std::string dtype;  // "BF16", "F8_E4M3", …
  int64_t num_tensors = 0;
  uint64_t stored_bytes = 0;
};

/// What one host of a role must hold.
struct HostNeed {
  std::string role;          // "one process", "router", "attention", "expert"
  int64_t num_hosts = 1;     // of this role
  int64_t weight_bytes = 0;  // as loaded: bf16 or FP8, padded to panels of 32
  int64_t kv_bytes = 0;
  int64_t total_bytes() const { return weight_bytes + kv_bytes; }
};

/// The cluster that an inspection plans for.
struct InspectionPlan {
  int64_t kv_tokens = 0;      // positions in the KV pool; 0: the model's context
  int64_t num_experts = 4;    // expert services
  int64_t num_attention = 1;  // attention ranks
  int64_t num_replicas = 2;   // services that hold each routed expert
};

/// Everything `moebius model inspect` says. A value.
struct ModelInspection {
  std::string folder;
  ModelConfig config;
  NumericsConfig numerics;
  std::string tokenizer;  // empty: none
  uint64_t model_hash = 0;
  uint64_t config_hash = 0;
  int64_t num_files = 0;
  int64_t num_ignored_tensors = 0;
  std::vector<KindSummary> kinds;  // FP8: scales included
  std::vector<TypeSummary> types;  // descending by bytes
  int64_t num_parameters = 0;
  int64_t num_active_parameters = 0;  // that one token meets: k of E experts
  uint64_t stored_bytes = 0;
  int64_t expert_stored_bytes = 0;  // one routed expert of one layer
  int64_t expert_loaded_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // over all layers
  int64_t kv_tokens = 0;
  int64_t num_replicas = 0;
  std::vector<HostNeed> needs;
};

/// Pure but for the checkpoint's files. INVALID_ARGUMENT for a plan that is none (no service, more
/// replicas than services).
absl::StatusOr<ModelInspection> InspectModel(const Checkpoint& checkpoint,
                                             const InspectionPlan& plan);

/// For people, several lines. Pure.
std::string FormatInspection(const ModelInspection& inspection);
/// One JSON object in one line. Pure.
std::string FormatInspectionJson(const ModelInspection& inspection);

}  // namespace moebius
