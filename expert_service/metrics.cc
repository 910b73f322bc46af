// SPDX-License-Identifier: Apache-2.0
#include "expert_service/metrics.h"

#include <algorithm>

namespace moebius {

void WriteDispatchMetrics(const DispatchServerFigures& figures,
                          const DispatchInstruments& instruments, MetricWriter& writer) {
  const auto write = [&](Metric metric, int64_t value, LabelValues labels = {}) {
    writer.WriteCounter(metric, static_cast<double>(value), labels);
  };
  write(Metric::kExpertDispatches, figures.served, {"served"});
  write(Metric::kExpertDispatches, figures.failed, {"failed"});
  write(Metric::kExpertDispatches, figures.refused, {"refused"});
  write(Metric::kExpertDispatches, figures.abandoned, {"abandoned"});
  write(Metric::kNotHeld, figures.not_held);
  write(Metric::kAssignments, figures.assignments, {"computed"});
  writer.WriteGauge(Metric::kExpertQueueDispatches, static_cast<double>(figures.waiting));
  writer.WriteHistogram(instruments.batch_rows);
  writer.WriteHistogram(instruments.compute_seconds);
  writer.WriteHistogram(instruments.queue_wait_seconds);
}

ComputedLoad ComputedLoadOf(const DispatchServerFigures& figures,
                            const std::vector<bool>& moe_layers, int64_t num_experts) {
  ComputedLoad load;
  load.num_experts = static_cast<int32_t>(num_experts);
  for (size_t layer = 0; layer < moe_layers.size(); ++layer) {
    if (!moe_layers[layer]) continue;
    load.layer_ids.push_back(static_cast<int32_t>(layer));
    load.computed.resize(load.computed.size() + static_cast<size_t>(num_experts));
    if (layer >= figures.expert_rows.size()) continue;  // nothing is served yet
    std::copy_n(figures.expert_rows[layer].begin(), num_experts, load.computed.end() - num_experts);
  }
  return load;
}

}  // namespace moebius
