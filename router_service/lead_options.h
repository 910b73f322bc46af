// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

#include "moebius/api/sampling.h"
#include "moebius/model/checkpoint.h"
#include "moebius/routing/capacity.h"
#include "router_service/exactness.h"
#include "router_service/step_schedule.h"

namespace moebius {

/// Bounds and defaults of a lead. Every length and count that a request can push has one.
struct LeadOptions {
  ScheduleLimits schedule;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // prompt + max_tokens <= this
  std::vector<int64_t> eos_token_ids;
  SamplingParams sampling;             // for what a request leaves unset; its seed is not used
  int64_t default_max_tokens = 256;    // or what fits behind the prompt, if less
  int64_t max_queued_requests = 1024;  // beyond: RESOURCE_EXHAUSTED
  int64_t max_running_sessions = 256;  // beyond: queued
  int64_t max_queued_events = 64;      // of one request; a full queue pauses the session
  int64_t max_replayed_events = 4096;  // of a request with an id, for callers who ask it again
  absl::Duration max_pause = absl::Seconds(60);  // a reader that is behind for longer: ends
  int64_t max_stop_token_ids = 64;
  int64_t max_stop_strings = 16;
  int64_t max_stop_bytes = 256;
  int64_t max_logprobs = 32;
  int64_t max_step_attempts = 3;
  /// An attempt that takes longer is counted and told as slow: whoever waits for a token notices.
  absl::Duration slow_step = absl::Seconds(1);
  CapacityPolicy capacity;  // the row owner's, as answers tell it
  PerDegreeSum per_degree;
  uint64_t first_step = 0;  // the number of the first step; smaller ones are somebody else's
  /// A step that misses a service waits so long for one that can stand in; then the sessions that
  /// need it fail, one by one, and the others go on.
  absl::Duration max_outage = absl::Seconds(10);
};

/// The facts of the model for one attention rank, and steps of `row_budget` rows of which one
/// prompt has at most `chunk_rows` (0: all). A request's defaults are those of
/// generation_config.json, else greedy.
LeadOptions BuildLeadOptions(const Checkpoint& checkpoint, int64_t row_budget, int64_t chunk_rows);

}  // namespace moebius
