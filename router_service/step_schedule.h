// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/strong_id.h"

namespace moebius {

/// What the scheduler must know of one running session.
struct SessionDemand {
  SessionId session;
  int32_t priority = 0;      // higher first
  uint64_t arrival = 0;      // order of submission; unique
  int64_t pending_rows = 0;  // tokens whose KV is not written yet; 1 for a session that decodes
  bool decoding = false;     // all its prompt has been run
  bool paused = false;       // its reader is behind: no rows until there is room
  int64_t prompt_rows = 0;   // of the pending ones, the first: those of the prompt
};

/// Rows that a session gets in the next step.
struct ScheduledRows {
  SessionId session;
  int64_t num_rows = 0;
  friend bool operator==(const ScheduledRows&, const ScheduledRows&) = default;
};

struct ScheduleLimits {
  int64_t row_budget = 512;    // rows of one step, >= 1
  int64_t chunk_rows = 512;    // rows of one prompt in one step, >= 1
  bool whole_prompts = false;  // a prompt goes in one step: its rows see all of it

  /// Rows of one prompt that a step can hold.
  int64_t prompt_rows() const { return chunk_rows < row_budget ? chunk_rows : row_budget; }
};

/// Chooses the rows of the next step. Deterministic: a function of the arguments of Build alone,
/// whatever the order of `sessions`.
///
/// Rules:
/// 1. Decoding sessions come first, one row each, then prompts in chunks.
/// 2. Within each class higher priority first, then earlier arrival.
/// 3. The sum never exceeds the row budget, a session's rows neither the chunk nor what is pending.
/// 4. When the budget leaves decoding sessions out, `turn` (the step's number) rotates who waits
///    among equals, so that nobody waits for ever.
/// 5. One row of the budget is kept for the first waiting prompt in every eighth step where
///    decoding sessions alone would fill it.
/// 6. With whole_prompts a prompt has all its rows in a step or none; rule 5 then keeps as many as
///    the first waiting one has. One with more than prompt_rows() never runs: admission refuses it.
///
/// Not thread-safe: Build's memory is used again, and allocated only where there are more sessions
/// than before.
class StepScheduler {
 public:
  /// Empty when nobody may run. Valid until the next call.
  absl::Span<const ScheduledRows> Build(absl::Span<const SessionDemand> sessions,
                                        const ScheduleLimits& limits, uint64_t turn);

 private:
  void ScheduleDecodes(int64_t budget, uint64_t turn);

  std::vector<SessionDemand> decodes_;
  std::vector<SessionDemand> prompts_;
  std::vector<ScheduledRows> schedule_;
};

}  // namespace moebius
