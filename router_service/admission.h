// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/api/generate.h"
#include "router_service/lead_options.h"
#include "router_service/ports.h"
#include "router_service/sampler.h"
#include "router_service/stop_matcher.h"

namespace moebius {

inline constexpr int64_t kMaxRequestIdBytes = 128;

/// A request that passed: every value is in range and every default is filled in.
struct AdmittedRequest {
  std::string request_id;
  std::vector<int32_t> prompt;  // >= 1 ids, in the vocabulary
  int64_t max_tokens = 0;       // >= 1; prompt + max_tokens <= the lead's max_positions
  SamplingParams sampling;
  StopRules stop;
  bool wants_logprobs = false;
  int32_t priority = 0;
  int64_t kv_blocks = 0;  // of the whole answer
};

/// INVALID_ARGUMENT where a prompt has more than the `step_rows` of a step, for models whose
/// prompts go in one step.
absl::Status CheckFitsOneStep(int64_t prompt_tokens, int64_t step_rows);

/// Decides whether a request can be run at all, before anything is asked of another service. Pure.
/// `drawn_id` and `drawn_seed` stand in for what the request leaves unset.
///
/// INVALID_ARGUMENT: no ids; an id outside the vocabulary (position, value and vocabulary size);
/// prompt + max_tokens above the limit (counts, never negative); a prompt that goes in one step and
/// does not fit; a sampling field out of range or
/// not a number; too many or too long stop strings.
/// RESOURCE_EXHAUSTED: the answer's KV is larger than the whole pool.
absl::StatusOr<AdmittedRequest> AdmitRequest(const GenerateRequest& request,
                                             const LeadOptions& options, const KvPool& pool,
                                             const std::string& drawn_id, uint64_t drawn_seed);

}  // namespace moebius
