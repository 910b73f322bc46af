// SPDX-License-Identifier: Apache-2.0
#include "router_service/expert_load.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Assignments Choices(std::vector<int32_t> ids, int32_t top_k) {
  Assignments assignments;
  assignments.Reset(static_cast<int64_t>(ids.size()) / top_k, top_k);
  assignments.expert_ids = std::move(ids);
  return assignments;
}

TEST(ExpertLoadTest, TellsLayersWithExpertsAlone) {
  ExpertLoad load({false, true, true}, 4);
  StepLoad step(3, 4);
  step.Add(LayerId(1), Choices({0, 1, 1, 3}, 2));
  step.Add(LayerId(2), Choices({2, 3, 2, 0}, 2));
  load.Add(step);
  const ExpertLoadTable table = load.Read();
  EXPECT_THAT(table.layer_ids, ElementsAre(1, 2));
  EXPECT_EQ(table.num_experts, 4);
  EXPECT_THAT(table.demand, ElementsAre(1, 2, 0, 1, 1, 0, 2, 1));
  EXPECT_THAT(table.dropped, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(ExpertLoadTest, CountsDroppedAssignmentsAsDemandToo) {
  ExpertLoad load({true}, 3);
  StepLoad step(1, 3);
  step.Add(LayerId(0), Choices({0, MarkDropped(2), MarkDropped(2), 1}, 2));
  load.Add(step);
  EXPECT_THAT(load.Read().demand, ElementsAre(1, 1, 2));
  EXPECT_THAT(load.Read().dropped, ElementsAre(0, 0, 2));
}

TEST(ExpertLoadTest, LeavesRefusedRowsAndDenseLayersOut) {
  ExpertLoad load({true}, 2);
  StepLoad step(1, 2);
  step.Add(LayerId(0), Choices({kNoExpert, kNoExpert, 1, 0}, 2));
  Assignments dense;
  dense.Reset(5, 0);
  step.Add(LayerId(0), dense);
  load.Add(step);
  EXPECT_THAT(load.Read().demand, ElementsAre(1, 1));
}

TEST(ExpertLoadTest, TellsHowManyExpertsHadRowsInTheLastStep) {
  ExpertLoad load({false, true}, 4);
  StepLoad step(2, 4);
  step.Add(LayerId(1), Choices({0, 1, 1, MarkDropped(3)}, 2));
  load.Add(step);
  EXPECT_THAT(load.Read().active, ElementsAre(2));
  step.Reset();
  step.Add(LayerId(1), Choices({2, 3}, 2));
  step.Add(LayerId(1), Choices({0, 3}, 2));
  load.Add(step);
  EXPECT_THAT(load.Read().active, ElementsAre(3));
}

TEST(StepLoadTest, ConservationHoldsWhereWhatWasServedIsWhatWasAskedForLessWhatWasDropped) {
  StepLoad step(2, 3);
  step.Add(LayerId(0), Choices({0, MarkDropped(2), 2, 1}, 2));
  CapacityResult limited;
  limited.demand = {4, 1, 0};
  limited.dropped = {1, 0, 0};
  limited.rerouted_out = {1, 0, 0};
  limited.rerouted_in = {0, 0, 1};
  step.Add(LayerId(1), limited);
  EXPECT_THAT(step.demand(LayerId(1)), ElementsAre(4, 1, 0));
  EXPECT_EQ(step.CountConservationErrors(), 6) << "nothing has been served yet";
  step.AddServed(LayerId(0), {1, 1, 1});
  step.AddServed(LayerId(1), {2, 1, 1});
  EXPECT_EQ(step.CountConservationErrors(), 0);
  EXPECT_EQ(step.TotalServed(), 7);
}

TEST(StepLoadTest, CountsEachExpertThatWasServedTooOftenOrNotAtAll) {
  StepLoad step(1, 3);
  step.Add(LayerId(0), Choices({0, 1}, 2));
  step.AddServed(LayerId(0), {2, 0, 0});
  EXPECT_EQ(step.CountConservationErrors(), 2);
  step.AddServed(LayerId(0), {0, 1, 1});
  EXPECT_EQ(step.CountConservationErrors(), 2) << "expert 0 twice, expert 2 for nobody";
}

TEST(ExpertLoadTest, ForgetsAStepThatIsReset) {
  ExpertLoad load({true}, 2);
  StepLoad step(1, 2);
  step.Add(LayerId(0), Choices({0, 1}, 2));
  step.Reset();
  load.Add(step);
  EXPECT_THAT(load.Read().demand, ElementsAre(0, 0));
}

TEST(ExpertLoadTest, LosesNothingAmongThreads) {
  ExpertLoad load({true}, 2);
  const auto add = [&load] {
    StepLoad step(1, 2);
    step.Add(LayerId(0), Choices({0, 1}, 2));
    for (int i = 0; i < 10'000; ++i) load.Add(step);
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_THAT(load.Read().demand, ElementsAre(20'000, 20'000));
}

TEST(ExpertLoadTest, HasNothingToTellOfADenseModel) {
  EXPECT_THAT(ExpertLoad({false, false}, 1).Read().demand, IsEmpty());
}

}  // namespace
}  // namespace moebius
