// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "moebius/attention/attention_method.h"
#include "moebius/base/strong_id.h"

namespace moebius {

/// The rows that one session has in a step: consecutive rows at consecutive positions.
struct SessionRows {
  SessionId session;
  int64_t row_begin = 0;       // first row in the step's row batch
  int64_t num_rows = 0;        // 0 is allowed: the session takes no part
  int64_t position_begin = 0;  // absolute position of the first row; earlier ones are committed
  /// Rows at positions >= prompt_length have the generated role, the others the prompt role. The
  /// role of a token never changes, also when it is computed again after a loss.
  int64_t prompt_length = 0;
  /// The rank that owns the session's first span, the same in every step of the session; the others
  /// follow by the rule of SpanOwner (shard.h). Taken modulo the number of ranks. No bit depends on
  /// it, save under the per-degree sum where rows go by heads.
  int32_t first_rank = 0;
  /// How several ranks share the prompt rows' attention; generated rows always send their queries.
  /// kLocal is of one rank. No bit depends on it.
  AttentionMethod method = AttentionMethod::kRingPassKv;
  /// Ranks of a group that shares heads: all of them for kUlysses, a divisor for k2d, else 1.
  int32_t ulysses_ranks = 1;

  int64_t row_end() const { return row_begin + num_rows; }
  int64_t position_end() const { return position_begin + num_rows; }
};

/// What one step computes: which rows of which sessions go through all layers together.
/// A value; attempt n + 1 of a step overwrites what attempt n wrote.
struct StepPlan {
  uint64_t term = 0;
  uint64_t step = 0;
  uint64_t attempt = 0;
  std::vector<SessionRows> sessions;  // ascending row_begin
  int64_t num_rows = 0;               // the sum of the sessions' rows; 0 is an ordinary step
};

/// INVALID_ARGUMENT with the broken rule, else OK:
/// 1. sessions tile [0, num_rows) in order, each row once;
/// 2. a session occurs at most once;
/// 3. counts, positions, prompt lengths and ranks are not negative and positions end at or below
/// 2^24;
/// 4. a group that shares heads has at least one rank, and as many for every session.
absl::Status ValidateStepPlan(const StepPlan& plan);

/// INVALID_ARGUMENT where a step has some of a prompt's rows and not all of them: what each layer
/// needs where rows see the whole prompt. For plans that have passed ValidateStepPlan.
absl::Status CheckWholePrompts(const StepPlan& plan);

}  // namespace moebius
