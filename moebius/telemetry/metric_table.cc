// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/metric_table.h"

namespace moebius {
namespace {

using enum Metric;
constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

// Metric, name, type, unit, labels, help[, buckets[, max series]].
// clang-format off
constexpr MetricSpec kTable[] = {
    {kRequests, "moebius_requests_total", kCounter, "", {"service", "method", "code"},
     "Calls that have ended, by their gRPC status code.", {}, 1024},
    {kRequestSeconds, "moebius_request_duration_seconds", kHistogram, "seconds",
     {"service", "method"},
     "From a call's arrival to its end.", kSecondsBuckets},
    {kRequestsInFlight, "moebius_requests_in_flight", kGauge, "", {"service", "method"},
     "Calls that have begun and not ended."},
    {kRpcConnections, "moebius_rpc_connections", kGauge, "", {"port"},
     "Connections to a port: public, admin for operators, or for peers data (gRPC) or shm (shared memory)."},
    {kRpcConnectionsRefused, "moebius_rpc_connections_refused_total", kCounter, "", {"port"},
     "Connections that were closed at once: the port had as many as it takes, in all, from one address or, "
     "to shm, of one process."},
    {kUnauthenticatedRequests, "moebius_unauthenticated_requests_total", kCounter, "", {},
     "Calls of the public port without a key, or with one that is not known; 0 without --api-keys."},
    {kClientRequests, "moebius_client_requests_total", kCounter, "", {"client"},
     "Generate, Forward and Route calls that were let in, by the client of their key.", {}, 256},
    {kClientRequestsInFlight, "moebius_client_requests_in_flight", kGauge, "", {"client"},
     "Of these, under way.", {}, 256},
    {kClientRequestsRefused, "moebius_client_requests_refused_total", kCounter, "",
     {"client", "reason"},
     "Such calls that were refused at the client's limit: in_flight, or tokens of a minute.", {}, 512},
    {kClientTokens, "moebius_client_tokens_total", kCounter, "", {"client"},
     "Tokens of prompts and answers, rows of Forward and tokens of Route that a client was charged.",
     {}, 256},
    {kRequestsQueued, "moebius_requests_queued", kGauge, "", {},
     "Requests that wait for admission."},
    {kQueueWaitSeconds, "moebius_queue_wait_seconds", kHistogram, "seconds", {},
     "From a request's submission to its admission.", kSecondsBuckets},
    {kRequestsRejected, "moebius_requests_rejected_total", kCounter, "", {"reason"},
     "Requests that were answered before any work, by the status code in lower case."},
    {kRequestsCancelled, "moebius_requests_cancelled_total", kCounter, "", {},
     "Admitted or queued requests whose reader cancelled or went away."},
    {kRequestsFailed, "moebius_requests_failed_total", kCounter, "", {"reason"},
     "Accepted requests that ended with a failure, by the status code in lower case."},
    {kRequestsFinished, "moebius_requests_finished_total", kCounter, "", {},
     "Requests whose answer was told to its end."},
    {kSessionsRunning, "moebius_sessions_running", kGauge, "", {},
     "Admitted requests, which hold KV and take part in steps."},
    {kKvReservedTokens, "moebius_kv_reserved_tokens", kGauge, "", {},
     "Positions that are set aside for admitted requests, prompt and answer together."},
    {kKvCapacityTokens, "moebius_kv_capacity_tokens", kGauge, "", {},
     "Positions that can be set aside, in all ranks together."},
    {kTimeToFirstTokenSeconds, "moebius_time_to_first_token_seconds", kHistogram, "seconds", {},
     "From a request's submission to its first generated token.", kSecondsBuckets},
    {kInterTokenLatencySeconds, "moebius_inter_token_latency_seconds", kHistogram, "seconds", {},
     "Between two generated tokens of one request.", kSecondsBuckets},
    {kPromptTokens, "moebius_prompt_tokens_total", kCounter, "", {},
     "Prompt tokens of admitted requests."},
    {kGeneratedTokens, "moebius_generated_tokens_total", kCounter, "", {},
     "Tokens that were sampled."},
    {kSteps, "moebius_steps_total", kCounter, "", {},
     "Steps that were tried, retries included."},
    {kStepRetries, "moebius_step_retries_total", kCounter, "", {},
     "Steps that failed in a way that another attempt may mend."},
    {kSlowSteps, "moebius_slow_steps_total", kCounter, "", {"stage"},
     "Attempts at steps that took more than --slow-step-ms, a second, by the phase that took longest; "
     "other: no phase has the time, so the process stood still. The router's log tells of them."},
    {kStepRows, "moebius_step_rows_total", kCounter, "", {},
     "Token rows of steps that were done."},
    {kStepPhaseSeconds, "moebius_step_phase_seconds_total", kCounter, "seconds", {"phase"},
     "Where the time of done steps went; attention and experts include waiting for them."},
    {kStepStallSeconds, "moebius_step_stall_seconds_total", kCounter, "seconds", {},
     "Of plan and experts: the time after a service had failed."},
    {kNonfiniteRows, "moebius_nonfinite_rows_total", kCounter, "", {"stage"},
     "Rows that met a NaN or an infinity; the request that owns them fails, others do not."},
    {kGateGroupFillMismatches, "moebius_gate_group_fill_mismatch_total", kCounter, "", {},
     "Rows whose choice of experts the other fill of masked groups would change."},
    {kDegradedResponses, "moebius_degraded_responses_total", kCounter, "", {"reason"},
     "Answers that say that they are not exact."},
    {kAssignments, "moebius_assignments_total", kCounter, "", {"stage"},
     "Token-to-expert assignments: routed, dispatched and combined of done steps, where dispatched = "
     "combined and routed = combined + dropped; computed by an expert service, resends included."},
    {kAssignmentsDropped, "moebius_assignments_dropped_total", kCounter, "", {"reason"},
     "Assignments that no expert computed. capacity: the answer says that it is not exact; nonfinite: "
     "of rows with a NaN or an infinity, whose requests fail. A step that lacks a replica or waits too "
     "long for one drops nothing: it fails as a whole and is tried again."},
    {kAssignmentsRerouted, "moebius_assignments_rerouted_total", kCounter, "", {},
     "Assignments that a full expert's capacity sent to another expert; the answer says so."},
    {kCapacityRejectedRows, "moebius_capacity_rejected_rows_total", kCounter, "", {},
     "Rows for which a full expert had no room and whose requests were rejected for it."},
    {kTokenConservationErrors, "moebius_token_conservation_errors_total", kCounter, "", {},
     "Experts of layers whose demand was not what was served and dropped, in steps that failed for it. "
     "Always 0, or the router is at fault."},
    {kDispatchedRows, "moebius_dispatched_rows_total", kCounter, "", {},
     "Rows sent to expert services: a row counts once for each service and layer."},
    {kReplyRows, "moebius_reply_rows_total", kCounter, "", {},
     "Rows that came back from expert services."},
    {kExpertAssignments, "moebius_expert_assignments_total", kCounter, "", {"layer", "expert"},
     "Demand: assignments to a routed expert, counted once by the owner of the rows. Above 2,048 "
     "series the ten hottest, unless --metrics-expert-detail=layer-expert.", {}, kMaxExpertSeries},
    {kExpertAssignmentsDropped, "moebius_expert_assignments_dropped_total", kCounter, "",
     {"layer", "expert"},
     "Of the demand, what a capacity dropped; absent while none is set. Shown for the experts whose "
     "demand is shown.", {}, kMaxExpertSeries},
    {kExpertLoadMaxOverMean, "moebius_expert_load_max_over_mean", kGauge, "", {"layer_group"},
     "Demand of a layer's hottest expert over the mean of all its experts, since the start."},
    {kDistinctExpertsActive, "moebius_distinct_experts_active", kGauge, "", {"layer_group"},
     "Routed experts of a layer that had rows in the last step: sets of weights that it read."},
    {kRecomputed, "moebius_recomputed_total", kCounter, "", {"what"},
     "Work that was done again after a fault: dispatch_rounds, a layer's after its first, and rows of them, "
     "which are never counted as load; kv_rows, whose keys were lost with an attention rank: steps run them again "
     "and count them again."},
    {kFailovers, "moebius_failovers_total", kCounter, "", {"reason"},
     "Dispatches that an expert service left unanswered and whose rows went elsewhere, by why: gone (it "
     "died, or left), suspect (given up, as others have its experts), silent (no reply in time), refused "
     "(it answered that it cannot), damaged (its reply was none), unsent (its queue was full)."},
    {kExpertDispatches, "moebius_expert_dispatches_total", kCounter, "", {"outcome"},
     "Dispatches that an expert service has ended: served, failed, refused (no room, draining, too "
     "late), or abandoned because their router had gone."},
    {kExpertBatchRows, "moebius_expert_batch_rows", kHistogram, "", {},
     "Rows of one dispatch.", kRowsBuckets},
    {kExpertComputeSeconds, "moebius_expert_compute_seconds", kHistogram, "seconds", {},
     "The forward pass of one dispatch.", kComputeBuckets},
    {kExpertQueueWaitSeconds, "moebius_expert_queue_wait_seconds", kHistogram, "seconds", {},
     "From a dispatch's arrival to its forward pass.", kComputeBuckets},
    {kExpertQueueDispatches, "moebius_expert_queue_dispatches", kGauge, "", {},
     "Dispatches that wait for their forward pass."},
    {kExpertWeightsResidentBytes, "moebius_expert_weights_resident_bytes", kGauge, "bytes", {},
     "Packed weights in memory."},
    {kExpertsHeld, "moebius_experts_held", kGauge, "", {},
     "Experts and slices of all layers whose weights are in memory."},
    {kNotHeld, "moebius_not_held_total", kCounter, "", {},
     "Dispatches that asked for an expert that is not held."},
    {kExpertReplicasReady, "moebius_expert_replicas_ready", kGauge, "", {},
     "Usable replicas of the expert that has the fewest; 0: some request cannot be served."},
    {kExpertReplicasPlaced, "moebius_expert_replicas_placed", kGauge, "", {},
     "Replicas that the placement has of the expert with the fewest."},
    {kPlacementEpoch, "moebius_placement_epoch", kGauge, "", {},
     "Epoch of the placement in use."},
    {kBiasVersion, "moebius_bias_version", kGauge, "", {},
     "Changes of the gates' biases since the checkpoint's; 0 while the balancer is off."},
    {kBiasMaxAbsDelta, "moebius_bias_max_abs_delta", kGauge, "", {"layer_group"},
     "Largest distance of a layer's biases from the checkpoint's."},
    {kBiasMaxViolation, "moebius_bias_max_violation", kGauge, "", {"layer_group"},
     "Of the last window under the balancer's biases: the hottest expert's demand over the mean, less 1."},
    {kBiasShadowChangedRatio, "moebius_bias_shadow_changed_ratio", kGauge, "ratio", {"layer_group"},
     "Of the last window in mode shadow: tokens whose experts the balancer's biases would change."},
    {kBiasSaveFailures, "moebius_bias_save_failures_total", kCounter, "", {},
     "Times that the biases could not be written to their file."},
    {kKvBlocksInUse, "moebius_kv_blocks_in_use", kGauge, "", {},
     "KV blocks held by sessions, open reservations included."},
    {kKvBlocks, "moebius_kv_blocks", kGauge, "", {},
     "KV blocks of the budget."},
    {kKvCacheUsageRatio, "moebius_kv_cache_usage_ratio", kGauge, "ratio", {},
     "Blocks in use over blocks of the budget."},
    {kKvSessions, "moebius_kv_sessions", kGauge, "", {},
     "Sessions that hold KV."},
    {kAttentionMethod, "moebius_attention_method_total", kCounter, "", {"method"},
     "Sessions of steps whose prompt rows ranks shared, by how: all-gather, ring-pass-kv, "
     "ring-pass-q, ulysses, 2d."},
    {kAttentionRounds, "moebius_attention_rounds_total", kCounter, "", {},
     "Rounds of other ranks' keys that were folded, per layer."},
    {kAttentionRingStepSeconds, "moebius_attention_ring_step_seconds_total", kCounter, "seconds", {},
     "Time of these rounds, waiting for their keys and folding them; over "
     "moebius_attention_rounds_total: of one."},
    {kAttentionExposedWaitSeconds, "moebius_attention_exposed_wait_seconds_total", kCounter,
     "seconds", {},
     "Time that steps waited for other ranks: what computing did not hide."},
    {kAttentionForeignSpans, "moebius_attention_foreign_spans_max", kGauge, "", {},
     "Most spans of other ranks that were held or under way at one time, since the start."},
    {kTransportBytes, "moebius_transport_bytes_total", kCounter, "bytes",
     {"transport", "lane", "direction"},
     "Bytes given to and taken from links, headers included."},
    {kTransportFrames, "moebius_transport_frames_total", kCounter, "",
     {"transport", "lane", "direction"},
     "Frames, the transport's own included."},
    {kTransportMessages, "moebius_transport_messages_total", kCounter, "",
     {"transport", "lane", "direction"},
     "Whole messages sent and delivered."},
    {kTransportCopiedBytes, "moebius_transport_copied_bytes_total", kCounter, "bytes",
     {"transport", "lane"},
     "Bytes copied while messages were put together."},
    {kTransportStageSeconds, "moebius_transport_stage_seconds_total", kCounter, "seconds",
     {"transport", "lane", "stage"},
     "Time of messages inside this process, summed over them. queued: from their sending until the link "
     "has their last part; delivered: from the arrival of their frames until they are handed over."},
    {kTransportDroppedMessages, "moebius_transport_dropped_messages_total", kCounter, "",
     {"transport", "lane", "reason"},
     "Messages that arrived and nobody wanted."},
    {kTransportPeers, "moebius_transport_peers", kGauge, "", {"transport", "state"},
     "Processes at the other end, by state."},
    {kUnauthenticatedPeers, "moebius_transport_unauthenticated_peers", kGauge, "", {"transport"},
     "Of the peers that are connected, those of other hosts that have proved nothing: without TLS."},
    {kPeerRttSeconds, "moebius_peer_rtt_seconds", kHistogram, "seconds", {"transport", "lane"},
     "From a beat, while messages are under way, to the credit with which the peer answers it at once: "
     "network, and what waits before it at both ends. None while nothing is sent.", kComputeBuckets},
    {kTransportLinks, "moebius_transport_links", kGauge, "", {"transport"},
     "Open links, those that have not said who they are included."},
    {kTransportErrors, "moebius_transport_errors_total", kCounter, "", {"transport", "reason"},
     "Links cut for what came over them or for saying nothing (silent_link), connected peers that left or died "
     "(peer_died), connections that ended before a link came over them (handshake), and, at a router, links "
     "of processes that it did not let in (join_refused; a process has three)."},
    {kTransportRetries, "moebius_transport_retries_total", kCounter, "", {"transport"},
     "Dials of a peer after the first: it had gone, or did not answer."},
    {kTransportHeldBytes, "moebius_transport_held_bytes", kGauge, "bytes", {"transport", "what"},
     "Bytes queued here, sent and not consumed, held for unfinished messages, reserved, or kept."},
    {kTransportReservations, "moebius_transport_reservations", kGauge, "", {"transport"},
     "Reservations that are open."},
    {kTlsCertificateExpiry, "moebius_tls_certificate_expiry_timestamp_seconds", kGauge, "seconds", {},
     "When the certificate ends that this process shows to new peers, since 1970; absent without TLS."},
    {kTlsReloads, "moebius_tls_reloads_total", kCounter, "", {"outcome"},
     "Looks at changed certificate files. used: new connections get them; refused: they cannot be used, "
     "and the former ones stay; counted again every ten seconds for as long as that is so. Absent without TLS."},
    {kBuildInfo, "moebius_build_info", kGauge, "", {"service", "version"},
     "1."},
    {kConfigInfo, "moebius_config_info", kGauge, "", {"config_hash", "numeric_class"},
     "1."},
    {kKernelInfo, "moebius_kernel_info", kGauge, "", {"dtype", "kernel"},
     "1: the kernels that compute in this process."},
    {kWeightsLoadSeconds, "moebius_weights_load_seconds", kGauge, "seconds", {"phase"},
     "The last load of packed weights: total; of it reading and packing, of all threads together, or "
     "reading the packed cache with its check, and writing it."},
    {kWeightsHugePageBytes, "moebius_weights_huge_page_bytes", kGauge, "bytes", {"state"},
     "Packed weights for which huge pages were asked, and those that got them."},
    {kPackedCache, "moebius_packed_cache_total", kCounter, "", {"outcome"},
     "Uses of the packed cache: hit, miss, stale (made of files that have changed), invalid (damaged, "
     "or not this user's own), written, refused (not kept: no room, no right)."},
    {kReady, "moebius_ready", kGauge, "", {},
     "1 while /readyz says yes, 0 while it says no: what is missing is in its words."},
    {kLoopLastSuccess, "moebius_background_loop_last_success_timestamp_seconds", kGauge, "seconds",
     {"loop"},
     "When the loop was last seen to progress or to have nothing to do, as Unix time."},
    {kHttpRequests, "moebius_http_requests_total", kCounter, "", {"code"},
     "Answers of the HTTP port."},
    {kHttpConnectionsCut, "moebius_http_connections_cut_total", kCounter, "", {"reason"},
     "Connections to the HTTP port that were ended without an answer."},
    {kLogLines, "moebius_log_lines_total", kCounter, "", {"outcome"},
     "Log lines: written, suppressed as repeats, or lost to a full queue or disk."},
    {kTraceSpansExported, "moebius_trace_spans_exported_total", kCounter, "", {},
     "Spans that a collector took; 0 without --trace-endpoint."},
    {kTraceSpansDropped, "moebius_trace_spans_dropped_total", kCounter, "", {"reason"},
     "Spans that it did not: queue_full, unreachable, refused by it, or stopped with the process."},
    {kTraceCallsOverRate, "moebius_trace_calls_over_rate_total", kCounter, "", {},
     "Calls whose traceparent asks for a trace and that have none, beyond --trace-caller-rate."},
    {kMetricsErrors, "moebius_metrics_errors_total", kCounter, "", {"reason"},
     "Values that were clamped or left out, because they cannot be true or are too many."},
    {kProcessCpuSeconds, "process_cpu_seconds_total", kCounter, "seconds", {},
     "User and system time."},
    {kProcessResidentBytes, "process_resident_memory_bytes", kGauge, "bytes", {},
     "Resident memory."},
    {kProcessVirtualBytes, "process_virtual_memory_bytes", kGauge, "bytes", {},
     "Virtual memory."},
    {kProcessOpenFds, "process_open_fds", kGauge, "", {},
     "Open file descriptors."},
    {kProcessMaxFds, "process_max_fds", kGauge, "", {},
     "Limit of open file descriptors."},
    {kProcessStartTime, "process_start_time_seconds", kGauge, "seconds", {},
     "Start of the process, as Unix time."},
    {kProcessThreads, "process_threads", kGauge, "", {},
     "Threads."},
};
// clang-format on

constexpr bool EndsWith(absl::string_view text, absl::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// In the order of the enumeration; counters, and they alone, end in _total; histograms, and they
// alone, have buckets.
constexpr bool IsInOrder() {
  if (std::size(kTable) != kNumMetrics) return false;
  for (size_t index = 0; index < std::size(kTable); ++index) {
    if (kTable[index].metric != static_cast<Metric>(index)) return false;
  }
  return true;
}
constexpr bool HasRightSuffixes() {
  for (const MetricSpec& spec : kTable) {
    if ((spec.type == kCounter) != EndsWith(spec.name, "_total")) return false;
  }
  return true;
}
constexpr bool HasBuckets() {
  for (const MetricSpec& spec : kTable) {
    if ((spec.type == kHistogram) == spec.buckets.empty()) return false;
    for (size_t index = 1; index < spec.buckets.size(); ++index) {
      if (spec.buckets[index - 1] >= spec.buckets[index]) return false;
    }
  }
  return true;
}
static_assert(IsInOrder());
static_assert(HasRightSuffixes());
static_assert(HasBuckets());

}  // namespace

absl::Span<const MetricSpec> MetricTable() { return kTable; }

absl::string_view MetricArea(Metric metric) {
  if (metric < kTimeToFirstTokenSeconds) return "Requests";
  if (metric < kSteps) return "Tokens";
  if (metric < kAssignments) return "Steps";
  if (metric < kKvBlocksInUse) return "Experts";
  if (metric < kTransportBytes) return "Attention";
  if (metric < kBuildInfo) return "Transport";
  return "Process";
}

}  // namespace moebius
