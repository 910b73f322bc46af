// SPDX-License-Identifier: Apache-2.0
#include "router_service/metrics.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace moebius {

void WriteLeadMetrics(const Lead& lead, MetricWriter& writer) {
  const LeadUsage usage = lead.usage();
  writer.WriteGauge(Metric::kRequestsQueued, static_cast<double>(usage.queued_requests));
  writer.WriteGauge(Metric::kSessionsRunning, static_cast<double>(usage.running_sessions));
  writer.WriteGauge(Metric::kKvReservedTokens, static_cast<double>(usage.reserved_kv_tokens));
  writer.WriteGauge(Metric::kKvCapacityTokens, static_cast<double>(usage.kv_capacity_tokens));
  lead.meter().WriteMetrics(writer);
}

void WriteExpertLoadMetrics(const ExpertLoadTable& load, ExpertDetail detail,
                            MetricWriter& writer) {
  ExpertDemand demand;
  demand.layer_ids = load.layer_ids;
  demand.num_experts = static_cast<size_t>(load.num_experts);
  demand.counts = load.demand;
  if (load.has_capacity) demand.dropped = load.dropped;
  demand.active = load.active;
  WriteExpertLoad(demand, detail, writer);
}

void WriteBiasMetrics(const BiasTable& table, int64_t save_failures, MetricWriter& writer) {
  writer.WriteGauge(Metric::kBiasVersion, static_cast<double>(table.version));
  writer.WriteCounter(Metric::kBiasSaveFailures, static_cast<double>(save_failures));
  for (const LayerBias& layer : table.layers) {
    const std::string id = absl::StrCat(layer.layer);
    writer.WriteGauge(Metric::kBiasMaxAbsDelta, layer.max_delta, {id});
    writer.WriteGauge(Metric::kBiasMaxViolation, layer.max_violation, {id});
    writer.WriteGauge(Metric::kBiasShadowChangedRatio, layer.changed_ratio, {id});
  }
}

void WriteRefusalMetrics(uint64_t num_refused, absl::string_view provider, MetricWriter& writer) {
  writer.WriteCounter(Metric::kTransportErrors, static_cast<double>(num_refused),
                      {provider, "join_refused"});
}

void WriteReplicaMetrics(const Roster::Replicas& fewest, MetricWriter& writer) {
  writer.WriteGauge(Metric::kExpertReplicasReady, static_cast<double>(fewest.usable));
  writer.WriteGauge(Metric::kExpertReplicasPlaced, static_cast<double>(fewest.placed));
}

}  // namespace moebius
