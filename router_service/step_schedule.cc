// SPDX-License-Identifier: Apache-2.0
#include "router_service/step_schedule.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {
namespace {

bool Before(const SessionDemand& a, const SessionDemand& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return a.arrival < b.arrival;
}

void Select(absl::Span<const SessionDemand> sessions, bool decoding,
            std::vector<SessionDemand>& selected) {
  selected.clear();
  for (const SessionDemand& demand : sessions) {
    if (demand.decoding == decoding && !demand.paused && demand.pending_rows > 0) {
      selected.push_back(demand);
    }
  }
  std::sort(selected.begin(), selected.end(), Before);
}

}  // namespace

// One row for each decoding session up to `budget`. Among the equals that do not all fit, the turn
// moves a window around, so that each of them is served at least once in ceil(n / room) turns.
void StepScheduler::ScheduleDecodes(int64_t budget, uint64_t turn) {
  size_t begin = 0;
  while (begin < decodes_.size() && budget > 0) {
    size_t end = begin;
    while (end < decodes_.size() && decodes_[end].priority == decodes_[begin].priority) ++end;
    const uint64_t equals = end - begin;
    const uint64_t room = std::min<uint64_t>(equals, static_cast<uint64_t>(budget));
    const uint64_t first = room == equals ? 0 : (turn % equals) * room % equals;
    for (uint64_t offset = 0; offset < room; ++offset) {
      schedule_.push_back({decodes_[begin + (first + offset) % equals].session, 1});
    }
    budget -= static_cast<int64_t>(room);
    begin = end;
  }
}

absl::Span<const ScheduledRows> StepScheduler::Build(absl::Span<const SessionDemand> sessions,
                                                     const ScheduleLimits& limits, uint64_t turn) {
  MOEBIUS_CHECK_GE(limits.row_budget, 1);
  MOEBIUS_CHECK_GE(limits.chunk_rows, 1);
  Select(sessions, true, decodes_);
  Select(sessions, false, prompts_);

  // Decoding is what people wait for, but a full house of it must not keep a prompt out for ever.
  int64_t least = 1;  // rows of the first prompt
  if (limits.whole_prompts && !prompts_.empty()) {
    least = std::clamp<int64_t>(prompts_[0].prompt_rows, 1, limits.row_budget);
  }
  const bool full = static_cast<int64_t>(decodes_.size()) > limits.row_budget - least;
  const int64_t kept = full && !prompts_.empty() && turn % 8 == 0 ? least : 0;

  schedule_.clear();
  ScheduleDecodes(limits.row_budget - kept, turn);
  int64_t budget = limits.row_budget - static_cast<int64_t>(schedule_.size());
  for (const SessionDemand& prompt : prompts_) {
    if (budget == 0) break;
    const int64_t rows = std::min({prompt.pending_rows, limits.chunk_rows, budget});
    if (limits.whole_prompts && rows < prompt.prompt_rows) continue;
    schedule_.push_back({prompt.session, rows});
    budget -= rows;
  }
  return schedule_;
}

}  // namespace moebius
