// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The one place that declares metrics. docs/metrics.md is made from this table by
// `metrics_document`, and a test fails when they differ.

namespace moebius {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

/// In the order of kMetricTable.
enum class Metric : uint16_t {
  // Requests
  kRequests,
  kRequestSeconds,
  kRequestsInFlight,
  kRpcConnections,
  kRpcConnectionsRefused,
  kUnauthenticatedRequests,
  kClientRequests,
  kClientRequestsInFlight,
  kClientRequestsRefused,
  kClientTokens,
  kRequestsQueued,
  kQueueWaitSeconds,
  kRequestsRejected,
  kRequestsCancelled,
  kRequestsFailed,
  kRequestsFinished,
  kSessionsRunning,
  kKvReservedTokens,
  kKvCapacityTokens,
  // Tokens
  kTimeToFirstTokenSeconds,
  kInterTokenLatencySeconds,
  kPromptTokens,
  kGeneratedTokens,
  // Steps
  kSteps,
  kStepRetries,
  kSlowSteps,
  kStepRows,
  kStepPhaseSeconds,
  kStepStallSeconds,
  kNonfiniteRows,
  kGateGroupFillMismatches,
  kDegradedResponses,
  // Experts
  kAssignments,
  kAssignmentsDropped,
  kAssignmentsRerouted,
  kCapacityRejectedRows,
  kTokenConservationErrors,
  kDispatchedRows,
  kReplyRows,
  kExpertAssignments,
  kExpertAssignmentsDropped,
  kExpertLoadMaxOverMean,
  kDistinctExpertsActive,
  kRecomputed,
  kFailovers,
  kExpertDispatches,
  kExpertBatchRows,
  kExpertComputeSeconds,
  kExpertQueueWaitSeconds,
  kExpertQueueDispatches,
  kExpertWeightsResidentBytes,
  kExpertsHeld,
  kNotHeld,
  kExpertReplicasReady,
  kExpertReplicasPlaced,
  kPlacementEpoch,
  kBiasVersion,
  kBiasMaxAbsDelta,
  kBiasMaxViolation,
  kBiasShadowChangedRatio,
  kBiasSaveFailures,
  // Attention
  kKvBlocksInUse,
  kKvBlocks,
  kKvCacheUsageRatio,
  kKvSessions,
  kAttentionMethod,
  kAttentionRounds,
  kAttentionRingStepSeconds,
  kAttentionExposedWaitSeconds,
  kAttentionForeignSpans,
  // Transport
  kTransportBytes,
  kTransportFrames,
  kTransportMessages,
  kTransportCopiedBytes,
  kTransportStageSeconds,
  kTransportDroppedMessages,
  kTransportPeers,
  kUnauthenticatedPeers,
  kPeerRttSeconds,
  kTransportLinks,
  kTransportErrors,
  kTransportRetries,
  kTransportHeldBytes,
  kTransportReservations,
  kTlsCertificateExpiry,
  kTlsReloads,
  // Process
  kBuildInfo,
  kConfigInfo,
  kKernelInfo,
  kWeightsLoadSeconds,
  kWeightsHugePageBytes,
  kPackedCache,
  kReady,
  kLoopLastSuccess,
  kHttpRequests,
  kHttpConnectionsCut,
  kLogLines,
  kTraceSpansExported,
  kTraceSpansDropped,
  kTraceCallsOverRate,
  kMetricsErrors,
  kProcessCpuSeconds,
  kProcessResidentBytes,
  kProcessVirtualBytes,
  kProcessOpenFds,
  kProcessMaxFds,
  kProcessStartTime,
  kProcessThreads,
  kCount,  // of the others
};

inline constexpr size_t kNumMetrics = static_cast<size_t>(Metric::kCount);
inline constexpr size_t kMaxLabels = 3;
/// Of one metric and process, unless its spec says otherwise; the rest is left out and counted.
inline constexpr size_t kDefaultMaxSeries = 256;

/// What a metric is, for good: names and labels are an interface.
struct MetricSpec {
  Metric metric;
  absl::string_view name;  // in full
  MetricType type;
  absl::string_view unit;  // base units; empty for a plain count
  std::array<absl::string_view, kMaxLabels> labels;
  absl::string_view help;
  absl::Span<const double> buckets;  // a histogram's upper bounds, ascending, without infinity
  size_t max_series = kDefaultMaxSeries;

  constexpr size_t num_labels() const {
    size_t count = 0;
    while (count < kMaxLabels && !labels[count].empty()) ++count;
    return count;
  }
};

/// From what a person notices in a token to what a deadline allows.
inline constexpr double kSecondsBuckets[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                             0.25,  0.5,    1,     2.5,  5,     10,   30};
/// From one expert's product of one row to a long prompt's step.
inline constexpr double kComputeBuckets[] = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025,
                                             0.0005,  0.001,    0.0025,  0.005,  0.01,
                                             0.025,   0.05,     0.1,     0.25,   1};
inline constexpr double kRowsBuckets[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
/// Layer × expert of the largest models that are known (61 × 384), with room.
inline constexpr size_t kMaxExpertSeries = 32768;

/// All metrics (metric_table.cc), in the order of Metric.
absl::Span<const MetricSpec> MetricTable();

inline const MetricSpec& SpecOf(Metric metric) {
  return MetricTable()[static_cast<size_t>(metric)];
}

/// "Requests", "Tokens", …: the part of the documentation that a metric belongs to.
absl::string_view MetricArea(Metric metric);

}  // namespace moebius
