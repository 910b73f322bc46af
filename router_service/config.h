// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/model/model_config.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/capacity.h"
#include "moebius/service/flags.h"
#include "moebius/service/settings.h"
#include "router_service/bias_control.h"

namespace moebius {

/// The settings that a router has beside those of all services.
struct RouterFlags {
  std::string grpc_listen = "127.0.0.1:7413";  // the public API
  bool reflection = false;                     // the public port describes its API
  std::string api_keys;                        // who may call it (client_list.h); empty: anybody
  int64_t num_experts = 1;                     // expert services
  int64_t expert_replicas = 0;      // of each routed expert; 0: two where there are two services
  std::string placement_file;       // empty: expert_replicas decides
  int64_t num_attention = 1;        // attention ranks
  int64_t row_budget = 512;         // rows of one step
  int64_t chunk_rows = 0;           // of one prompt in one step; 0: the row budget
  int64_t drain_grace_seconds = 3;  // requests are still taken so long after SIGTERM
  int64_t slow_step_ms = 1000;      // a step that takes longer is told of; 0: none is
  std::string attention_method = "auto";  // how ranks share prompt rows (attention_rule.h)
  std::string attention_rates =
      "measured";         // what auto's cost model counts with (attention_rule.h)
  CapacityText capacity;  // of experts; empty: dropless

  // The balancer of the gates' biases.
  std::string bias_balancer = "off";  // shadow, on
  std::string bias_file;              // where the biases are kept; "on" needs one
  std::string bias_rule = "sign";     // proportional
  std::string bias_gamma = "0.001";
  std::string bias_limit = "0.5";
  int64_t bias_window = 2000;  // assignments per expert; 0: UpdateBias alone moves them

  std::string metrics_expert_detail = "auto";  // off, layer-expert
  std::string trace_endpoint;                  // http://HOST:PORT/PATH; empty: nothing is traced
  std::string trace_sample_ratio = "0.01";     // of calls without a traceparent
  std::string trace_caller_rate = "10";        // a second, of calls whose traceparent says so

  /// expert_replicas, or its default.
  int64_t Replicas() const {
    return expert_replicas > 0 ? expert_replicas : num_experts > 1 ? 2 : 1;
  }
};

void AddRouterSettings(RouterFlags* flags, Settings* settings);

/// INVALID_ARGUMENT names the setting.
absl::Status ValidateRouterFlags(const RouterFlags& flags);

/// INVALID_ARGUMENT names the setting.
absl::StatusOr<BiasControlOptions> BiasOptionsOf(const RouterFlags& flags);

/// Which expert service holds what: as the placement file says, else each expert on Replicas() of
/// them. INVALID_ARGUMENT or NOT_FOUND as ReadPlacementFile says.
absl::StatusOr<Placement> PlacementOf(const ModelConfig& config, const RouterFlags& flags);

}  // namespace moebius
