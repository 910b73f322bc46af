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

std::vector<SessionDemand> Select(absl::Span<const SessionDemand> sessions, bool decoding) {
  std::vector<SessionDemand> selected;
  for (const SessionDemand& demand : sessions) {
    if (demand.decoding == decoding && !demand.paused && demand.pending_rows > 0) {
      selected.push_back(demand);
    }
  }
  std::sort(selected.begin(), selected.end(), Before);
  return selected;
}

// One row for each of `sessions` up to `budget`. Among the equals that do not all fit, the turn
// moves a window around, so that each of them is served at least once in ceil(n / room) turns.
void ScheduleDecodes(const std::vector<SessionDemand>& sessions, int64_t budget, uint64_t turn,
                     std::vector<ScheduledRows>* schedule) {
  size_t begin = 0;
  while (begin < sessions.size() && budget > 0) {
    size_t end = begin;
    while (end < sessions.size() && sessions[end].priority == sessions[begin].priority) ++end;
    const uint64_t equals = end - begin;
    const uint64_t room = std::min<uint64_t>(equals, static_cast<uint64_t>(budget));
    const uint64_t first = room == equals ? 0 : (turn % equals) * room % equals;
    for (uint64_t offset = 0; offset < room; ++offset) {
      schedule->push_back({sessions[begin + (first + offset) % equals].session, 1});
    }
    budget -= static_cast<int64_t>(room);
    begin = end;
  }
}

}  // namespace

std::vector<ScheduledRows> BuildStepSchedule(absl::Span<const SessionDemand> sessions,
                                             const ScheduleLimits& limits, uint64_t turn) {
  MOEBIUS_CHECK_GE(limits.row_budget, 1);
  MOEBIUS_CHECK_GE(limits.chunk_rows, 1);
  const std::vector<SessionDemand> decodes = Select(sessions, true);
  const std::vector<SessionDemand> prompts = Select(sessions, false);

  // Decoding is what people wait for, but a full house of it must not keep a prompt out for ever.
  const bool full = static_cast<int64_t>(decodes.size()) >= limits.row_budget;
  const int64_t kept = full && !prompts.empty() && turn % 8 == 0 ? 1 : 0;

  std::vector<ScheduledRows> schedule;
  schedule.reserve(decodes.size() + prompts.size());
  ScheduleDecodes(decodes, limits.row_budget - kept, turn, &schedule);
  int64_t budget = limits.row_budget - static_cast<int64_t>(schedule.size());
  for (const SessionDemand& prompt : prompts) {
    if (budget == 0) break;
    const int64_t rows = std::min({prompt.pending_rows, limits.chunk_rows, budget});
    schedule.push_back({prompt.session, rows});
    budget -= rows;
  }
  return schedule;
}

}  // namespace moebius
