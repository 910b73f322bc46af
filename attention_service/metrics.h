// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_service/attention_pipeline.h"
#include "moebius/telemetry/registry.h"

// What an attention rank shows of itself, written by a collector of its registry.

namespace moebius {

/// What sharing with other ranks took: AttentionPipeline::shard_figures, which any thread may ask.
void WriteShardMetrics(const ShardFigures& figures, MetricWriter& writer);
/// Where the KV budget stands: AttentionPipeline::usage, which any thread may ask.
void WriteKvMetrics(const KvUsage& usage, MetricWriter& writer);

}  // namespace moebius
