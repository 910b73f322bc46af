// SPDX-License-Identifier: Apache-2.0
#include "attention_service/metrics.h"

namespace moebius {

void WriteKvMetrics(const KvUsage& usage, MetricWriter& writer) {
  const double used = static_cast<double>(usage.used_blocks);
  const double all = static_cast<double>(usage.num_blocks);
  writer.WriteGauge(Metric::kKvBlocksInUse, used);
  writer.WriteGauge(Metric::kKvBlocks, all);
  writer.WriteGauge(Metric::kKvCacheUsageRatio, all > 0 ? used / all : 0);
  writer.WriteGauge(Metric::kKvSessions, static_cast<double>(usage.num_sessions));
}

void WriteShardMetrics(const ShardFigures& figures, MetricWriter& writer) {
  for (const AttentionMethod method : kAttentionMethods) {
    // A rank alone shares nothing.
    if (method == AttentionMethod::kLocal) continue;
    writer.WriteCounter(Metric::kAttentionMethod,
                        static_cast<double>(figures.methods[static_cast<size_t>(method)]),
                        {AttentionMethodName(method)});
  }
  writer.WriteCounter(Metric::kAttentionRounds, static_cast<double>(figures.rounds));
  writer.WriteCounter(Metric::kAttentionRingStepSeconds, figures.round_seconds);
  writer.WriteCounter(Metric::kAttentionExposedWaitSeconds, figures.wait_seconds);
  writer.WriteGauge(Metric::kAttentionForeignSpans, static_cast<double>(figures.max_foreign_spans));
}

}  // namespace moebius
