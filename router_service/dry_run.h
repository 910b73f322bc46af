// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/base/strong_id.h"
#include "router_service/row_pipeline.h"

namespace moebius {

/// A prompt that is run for what can be seen of it, as one session of its own.
struct DryRun {
  absl::Span<const int64_t> token_ids;   // >= 1, in the vocabulary
  absl::Span<const int64_t> logit_rows;  // tokens whose logits are wanted, ascending
  int64_t chunk_rows = 512;              // rows of one step, >= 1
};

/// The session of dry runs: no request's, a lead counts those up from 1.
inline constexpr SessionId kDryRunSession(std::numeric_limits<uint64_t>::max());

/// INVALID_ARGUMENT: no ids, more than `max_tokens`, an id outside the vocabulary (its position,
/// its value and the vocabulary's size).
absl::Status CheckPrompt(absl::Span<const int64_t> token_ids, int64_t vocab_size,
                         int64_t max_tokens);

/// Runs the prompt in steps of `*next_step` and upwards, which is advanced. `observer` sees its
/// gates, `on_step` the result of each step. Counts nowhere; the session has ended when this
/// returns. Nothing else may use the pipeline meanwhile.
/// INVALID_ARGUMENT naming the position for values that are not finite; else what a step says.
absl::Status RunDry(const DryRun& run, RowPipeline& pipeline, StepObserver& observer,
                    uint64_t* next_step, absl::FunctionRef<void(const StepResult&)> on_step);

}  // namespace moebius
