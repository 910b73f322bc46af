// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/step_plan.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr int64_t kMaxPosition = int64_t{1} << 24;  // RopeTable's bound
constexpr size_t kUsualSessions = 512;              // whose ids take no memory of their own

// A session that occurs twice; null: none.
const SessionRows* FindTwice(const StepPlan& plan) {
  absl::InlinedVector<SessionId, kUsualSessions> ids;
  for (const SessionRows& rows : plan.sessions) ids.push_back(rows.session);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return nullptr;
  return &*std::find_if(plan.sessions.begin(), plan.sessions.end(),
                        [&](const SessionRows& rows) { return rows.session == *twice; });
}

}  // namespace

absl::Status ValidateStepPlan(const StepPlan& plan) {
  int64_t next_row = 0;
  int32_t ulysses_ranks = 1;
  for (const SessionRows& rows : plan.sessions) {
    const auto fail = [&](const auto&... words) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", plan.step, ", session ", rows.session.value(), ": ", words...));
    };
    if (rows.num_rows < 0) return fail("num_rows is ", rows.num_rows);
    if (rows.row_begin != next_row) {
      return fail("rows begin at ", rows.row_begin, ", the rows before end at ", next_row);
    }
    if (rows.num_rows > plan.num_rows - next_row) {
      return fail("rows end beyond the ", plan.num_rows, " rows of the step");
    }
    if (rows.position_begin < 0 || rows.position_begin > kMaxPosition - rows.num_rows) {
      return fail("position ", rows.position_begin, " is outside [0, ", kMaxPosition, "]");
    }
    if (rows.prompt_length < 0) return fail("prompt length is ", rows.prompt_length);
    if (rows.first_rank < 0) return fail("its first rank is ", rows.first_rank);
    if (rows.ulysses_ranks < 1) return fail("its heads are of ", rows.ulysses_ranks, " ranks");
    if (rows.ulysses_ranks > 1) {
      if (ulysses_ranks > 1 && rows.ulysses_ranks != ulysses_ranks) {
        return fail("its heads are of ", rows.ulysses_ranks, " ranks, others' of ", ulysses_ranks);
      }
      ulysses_ranks = rows.ulysses_ranks;
    }
    next_row = rows.row_end();
  }
  if (const SessionRows* const twice = FindTwice(plan)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", plan.step, ", session ", twice->session.value(), ": occurs twice"));
  }
  if (next_row != plan.num_rows) {
    return absl::InvalidArgumentError(absl::StrCat("step ", plan.step, ": sessions hold ", next_row,
                                                   " rows, the step says ", plan.num_rows));
  }
  return absl::OkStatus();
}

absl::Status CheckWholePrompts(const StepPlan& plan) {
  for (const SessionRows& rows : plan.sessions) {
    if (rows.num_rows == 0 || rows.position_begin >= rows.prompt_length) continue;
    if (rows.position_begin == 0 && rows.position_end() >= rows.prompt_length) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("step ", plan.step, ", session ", rows.session.value(), ": has positions ",
                     rows.position_begin, " to ", rows.position_end(), " of a prompt of ",
                     rows.prompt_length, ", which its rows see whole: it goes in one step"));
  }
  return absl::OkStatus();
}

}  // namespace moebius
