// SPDX-License-Identifier: Apache-2.0
#include "router_service/step_schedule.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

std::vector<ScheduledRows> BuildStepSchedule(absl::Span<const SessionDemand> sessions,
                                             const ScheduleLimits& limits, uint64_t turn) {
  StepScheduler scheduler;
  const absl::Span<const ScheduledRows> schedule = scheduler.Build(sessions, limits, turn);
  return {schedule.begin(), schedule.end()};
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SessionDemand Decode(uint64_t id, int32_t priority = 0) {
  return {SessionId(id), priority, id, /*pending_rows=*/1, /*decoding=*/true, /*paused=*/false};
}

SessionDemand Prompt(uint64_t id, int64_t rows, int32_t priority = 0) {
  return {SessionId(id), priority, id, rows, /*decoding=*/false, /*paused=*/false};
}

ScheduledRows Rows(uint64_t id, int64_t rows) { return {SessionId(id), rows}; }

TEST(StepScheduleTest, PutsDecodeRowsBeforePrompts) {
  EXPECT_THAT(BuildStepSchedule({Prompt(1, 100), Decode(2), Decode(3)}, {16, 16}, 1),
              ElementsAre(Rows(2, 1), Rows(3, 1), Rows(1, 14)));
}

TEST(StepScheduleTest, CutsPromptsIntoChunksUpToTheBudget) {
  EXPECT_THAT(BuildStepSchedule({Prompt(1, 100), Prompt(2, 3), Prompt(3, 100)}, {16, 8}, 1),
              ElementsAre(Rows(1, 8), Rows(2, 3), Rows(3, 5)));
}

TEST(StepScheduleTest, TakesHigherPriorityFirstThenEarlierArrival) {
  EXPECT_THAT(BuildStepSchedule({Prompt(1, 9), Prompt(2, 9, 5), Prompt(3, 9, 5)}, {20, 20}, 1),
              ElementsAre(Rows(2, 9), Rows(3, 9), Rows(1, 2)));
}

TEST(StepScheduleTest, LeavesOutThePausedAndTheEmpty) {
  SessionDemand paused = Decode(1);
  paused.paused = true;
  EXPECT_THAT(BuildStepSchedule({paused, Prompt(2, 0)}, {16, 16}, 1), IsEmpty());
  EXPECT_THAT(BuildStepSchedule({}, {16, 16}, 1), IsEmpty());
}

TEST(StepScheduleTest, ServesEveryDecodeWithinTheTurnsThatTheBudgetNeeds) {
  std::vector<SessionDemand> sessions;
  for (uint64_t id = 1; id <= 10; ++id) sessions.push_back(Decode(id));
  std::map<uint64_t, int> served;
  // ceil(10 / 3) = 4 turns reach everybody.
  for (uint64_t turn = 1; turn <= 4; ++turn) {
    const auto schedule = BuildStepSchedule(sessions, {3, 3}, turn);
    EXPECT_EQ(schedule.size(), 3u);
    for (const ScheduledRows& rows : schedule) ++served[rows.session.value()];
  }
  EXPECT_EQ(served.size(), 10u);
}

TEST(StepScheduleTest, KeepsARowForAWaitingPromptInEveryEighthStep) {
  const std::vector<SessionDemand> sessions = {Decode(1), Decode(2), Prompt(3, 50)};
  EXPECT_THAT(BuildStepSchedule(sessions, {2, 2}, 7), ElementsAre(Rows(1, 1), Rows(2, 1)));
  const auto eighth = BuildStepSchedule(sessions, {2, 2}, 8);
  ASSERT_EQ(eighth.size(), 2u);
  EXPECT_EQ(eighth[1], Rows(3, 1));
}

SessionDemand WholePrompt(uint64_t id, int64_t prompt_rows, int64_t generated_rows = 0) {
  SessionDemand demand = Prompt(id, prompt_rows + generated_rows);
  demand.prompt_rows = prompt_rows;
  return demand;
}

constexpr ScheduleLimits kWhole{.row_budget = 16, .chunk_rows = 12, .whole_prompts = true};

TEST(StepScheduleTest, CutsNoPromptThatGoesInOneStep) {
  EXPECT_THAT(
      BuildStepSchedule({WholePrompt(1, 10), WholePrompt(2, 7), WholePrompt(3, 6)}, kWhole, 1),
      ElementsAre(Rows(1, 10), Rows(3, 6)));
  // What was generated before a loss is causal: it may be cut.
  EXPECT_THAT(BuildStepSchedule({WholePrompt(1, 10, 9), WholePrompt(2, 5)}, kWhole, 1),
              ElementsAre(Rows(1, 12)));
  EXPECT_THAT(BuildStepSchedule({Prompt(1, 40), WholePrompt(2, 4)}, kWhole, 1),
              ElementsAre(Rows(1, 12), Rows(2, 4)));
}

TEST(StepScheduleTest, KeepsRoomForAWholePromptInEveryEighthStep) {
  std::vector<SessionDemand> sessions = {WholePrompt(100, 12), WholePrompt(101, 1)};
  for (uint64_t id = 1; id <= 6; ++id) sessions.push_back(Decode(id));
  for (uint64_t turn = 1; turn <= 24; ++turn) {
    const std::vector<ScheduledRows> schedule = BuildStepSchedule(sessions, kWhole, turn);
    const bool has_first = std::count(schedule.begin(), schedule.end(), Rows(100, 12)) == 1;
    EXPECT_EQ(has_first, turn % 8 == 0) << turn;
    // Who is small passes it meanwhile; nobody who decodes waits for more than that step.
    EXPECT_EQ(schedule.size(), turn % 8 == 0 ? 5u : 7u) << turn;
  }
  // A prompt as large as a step has one of its own.
  sessions[0] = WholePrompt(100, 16);
  EXPECT_THAT(BuildStepSchedule(sessions, {16, 16, true}, 8), ElementsAre(Rows(100, 16)));
}

TEST(StepScheduleTest, DoesNotDependOnTheOrderOfTheTable) {
  std::vector<SessionDemand> sessions = {Prompt(1, 40),    Decode(2), Decode(3, 1),
                                         Prompt(4, 20, 1), Decode(5), Prompt(6, 1)};
  const auto expected = BuildStepSchedule(sessions, {24, 16}, 3);
  std::sort(sessions.begin(), sessions.end(),
            [](const SessionDemand& a, const SessionDemand& b) { return a.session > b.session; });
  EXPECT_EQ(BuildStepSchedule(sessions, {24, 16}, 3), expected);
}

TEST(StepScheduleTest, NeverExceedsBudgetChunkOrWhatIsPending) {
  constexpr uint64_t kSeed = 20250131;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 500; ++round) {
    std::vector<SessionDemand> sessions;
    std::map<uint64_t, SessionDemand> by_id;
    for (uint64_t id = 1; id <= random.Below(20); ++id) {
      SessionDemand demand = random.Below(2) == 0
                                 ? Decode(id, static_cast<int32_t>(random.Below(3)))
                                 : Prompt(id, 1 + random.Below(60));
      demand.paused = random.Below(5) == 0;
      sessions.push_back(demand);
      by_id[id] = demand;
    }
    const ScheduleLimits limits{1 + static_cast<int64_t>(random.Below(40)),
                                1 + static_cast<int64_t>(random.Below(40))};
    int64_t total = 0;
    bool ready = false;
    for (const SessionDemand& demand : sessions) ready = ready || !demand.paused;
    std::map<uint64_t, int> seen;
    for (const ScheduledRows& rows : BuildStepSchedule(sessions, limits, random.Below(100))) {
      const SessionDemand& demand = by_id.at(rows.session.value());
      EXPECT_FALSE(demand.paused);
      EXPECT_GE(rows.num_rows, 1);
      EXPECT_LE(rows.num_rows, std::min(demand.pending_rows, limits.chunk_rows));
      EXPECT_EQ(++seen[rows.session.value()], 1);
      total += rows.num_rows;
    }
    EXPECT_LE(total, limits.row_budget);
    EXPECT_EQ(total > 0, ready);
  }
}

}  // namespace
}  // namespace moebius
