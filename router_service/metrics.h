// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#include "moebius/api/router_info.h"
#include "moebius/telemetry/expert_load.h"
#include "moebius/telemetry/registry.h"
#include "router_service/bias_control.h"
#include "router_service/lead.h"
#include "router_service/roster.h"

// What a router shows of itself, written by a collector of its registry:
//
//   registry.AddCollector([&](MetricWriter& writer) { WriteLeadMetrics(lead, writer); … })

namespace moebius {

/// Requests, tokens, steps and assignments of one lead.
void WriteLeadMetrics(const Lead& lead, MetricWriter& writer);

/// Demand by layer and expert.
void WriteExpertLoadMetrics(const ExpertLoadTable& load, ExpertDetail detail, MetricWriter& writer);

/// The balancer's biases, and how often they could not be kept.
void WriteBiasMetrics(const BiasTable& table, int64_t save_failures, MetricWriter& writer);

/// Links of processes that were not let in, by the transport that `provider` names.
void WriteRefusalMetrics(uint64_t num_refused, absl::string_view provider, MetricWriter& writer);

/// Whether every expert can be reached.
void WriteReplicaMetrics(const Roster::Replicas& fewest, MetricWriter& writer);

}  // namespace moebius
