// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/balance.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/placement/balanced_plan.h"
#include "moebius/placement/eplb.h"
#include "moebius/placement/rebalance.h"
#include "tests/placement/balance_fixture.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Le;

constexpr double kRounding = 1e-9;

BalanceProblem Problem(std::vector<int64_t> load, std::vector<int32_t> slots, int32_t groups = 1,
                       int32_t nodes = 1) {
  BalanceProblem problem;
  problem.load = std::move(load);
  problem.device_slots = std::move(slots);
  problem.num_groups = groups;
  problem.num_nodes = nodes;
  return problem;
}

BalancedLayer Balanced(const BalanceProblem& problem) {
  const absl::StatusOr<BalancedLayer> layer = PlanBalanced(problem);
  EXPECT_TRUE(layer.ok()) << layer.status();
  const absl::Status valid = ValidateBalancedLayer(problem, *layer, ReplicaRule::kDistinctDevices);
  EXPECT_TRUE(valid.ok()) << valid;
  return *layer;
}

TEST(EplbTest, GivesTheRecordedAnswersSlotForSlot) {
  const std::vector<EplbCase> cases = ReadEplbCases();
  ASSERT_EQ(cases.size(), 4u);
  for (const EplbCase& golden : cases) {
    for (size_t layer = 0; layer < golden.problems.size(); ++layer) {
      SCOPED_TRACE(testing::Message() << golden.name << " layer " << layer);
      const absl::StatusOr<BalancedLayer> answer = PlanEplb(golden.problems[layer]);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->expert_of_slot, golden.answers[layer].expert_of_slot);
      EXPECT_EQ(answer->replica_count, golden.answers[layer].replica_count);
      EXPECT_NEAR(MaxOverMean(golden.problems[layer], *answer), golden.max_over_mean[layer], 5e-7);
    }
  }
}

TEST(EplbTest, APackOfOneItemIsTheIdentityAndTiesGoToTheFirst) {
  // One expert per device: nothing is sorted by load.
  EXPECT_THAT(PlanEplb(Problem({1, 9, 5}, {1, 1, 1}))->expert_of_slot, ElementsAre(0, 1, 2));
  // Equal loads: the extra replica is expert 0's; packs fill in the order of creation.
  const BalancedLayer tied = *PlanEplb(Problem({6, 6, 6}, {2, 2}));
  EXPECT_THAT(tied.replica_count, ElementsAre(2, 1, 1));
  EXPECT_THAT(tied.expert_of_slot, ElementsAre(1, 0, 2, 0));
}

TEST(EplbTest, RefusesWhatItsShapeCannotHold) {
  const auto message = [](const BalanceProblem& problem) {
    return std::string(PlanEplb(problem).status().message());
  };
  EXPECT_THAT(message(Problem({1, 2}, {1, 2})), HasSubstr("different numbers of slots"));
  EXPECT_THAT(message(Problem({1, 2, 3}, {2, 2}, 2, 2)), HasSubstr("do not divide"));
  EXPECT_THAT(message(Problem({1, 2, 3, 4}, {2, 2, 2}, 2, 2)), HasSubstr("do not divide"));
}

TEST(BalanceTest, RefusesCountsThatCannotBe) {
  const auto message = [](const BalanceProblem& problem) {
    return std::string(PlanBalanced(problem).status().message());
  };
  EXPECT_THAT(message(Problem({}, {1})), HasSubstr("0 experts"));
  EXPECT_THAT(message(Problem({1}, {})), HasSubstr("0 devices"));
  EXPECT_THAT(message(Problem({1, -1}, {2})), HasSubstr("load of expert 1 is -1"));
  EXPECT_THAT(message(Problem({1, 1}, {2}, 3)), HasSubstr("3 groups"));
  EXPECT_THAT(message(Problem({1, 1}, {2}, 1, 2)), HasSubstr("2 nodes"));
  EXPECT_THAT(message(Problem({1, 1}, {3, -1})), HasSubstr("device 1 has -1 slots"));
  EXPECT_THAT(message(Problem({1, 1, 1}, {1, 1})), HasSubstr("3 experts need a slot each"));
}

TEST(BalanceTest, ValidateNamesTheRuleThatAnAnswerBreaks) {
  const BalanceProblem problem = Problem({4, 2, 1}, {2, 2});
  const auto message = [&problem](std::vector<int32_t> slots, std::vector<int32_t> count) {
    return std::string(ValidateBalancedLayer(problem, {std::move(slots), std::move(count)},
                                             ReplicaRule::kDistinctDevices)
                           .message());
  };
  EXPECT_EQ(message({0, 1, 0, 2}, {2, 1, 1}), "");
  EXPECT_THAT(message({0, 1, 0, kEmptySlot}, {2, 1, 0}), HasSubstr("B1: expert 2"));
  EXPECT_THAT(message({0, 1, 0, 2}, {1, 1, 1}), HasSubstr("B2"));
  EXPECT_THAT(message({0, 1, 0, 3}, {2, 1, 1}), HasSubstr("B3: slot 3 holds expert 3"));
  EXPECT_THAT(message({0, 1, 2}, {1, 1, 1}), HasSubstr("B3: 3 slots"));
  EXPECT_THAT(message({0, 0, 1, 2}, {2, 1, 1}), HasSubstr("B4: device 0 holds expert 0 twice"));
}

// The least max load per replica, by trying all counts.
double LeastShare(const std::vector<int64_t>& load, int64_t slots, int32_t most, size_t expert) {
  if (expert == load.size()) return 0;
  double least = HUGE_VAL;
  const auto others = static_cast<int64_t>(load.size() - expert) - 1;
  for (int32_t count = 1; count <= most && count + others <= slots; ++count) {
    const double share = static_cast<double>(load[expert]) / count;
    least = std::min(least, std::max(share, LeastShare(load, slots - count, most, expert + 1)));
  }
  return least;
}

TEST(CountReplicasTest, NoOtherCountsMakeTheHeaviestReplicaLighter) {
  const uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int64_t> load;
    for (uint64_t i = 0; i <= random.Below(4); ++i) load.push_back(random.Below(100));
    const auto slots = static_cast<int64_t>(load.size() + random.Below(7));
    const auto most = 1 + static_cast<int32_t>(random.Below(4));
    const std::vector<int32_t> count = CountReplicas(load, slots, most);
    double heaviest = 0;
    int64_t used = 0;
    for (size_t expert = 0; expert < load.size(); ++expert) {
      ASSERT_GE(count[expert], 1);
      ASSERT_LE(count[expert], most);
      used += count[expert];
      heaviest = std::max(heaviest, static_cast<double>(load[expert]) / count[expert]);
    }
    ASSERT_LE(used, slots);
    ASSERT_NEAR(heaviest, LeastShare(load, slots, most, 0), kRounding);
  }
}

TEST(BalancedPlanTest, IsNeverWorseThanTheRecordedAnswers) {
  for (const EplbCase& golden : ReadEplbCases()) {
    for (size_t layer = 0; layer < golden.problems.size(); ++layer) {
      SCOPED_TRACE(testing::Message() << golden.name << " layer " << layer);
      const BalanceProblem& problem = golden.problems[layer];
      const double reached = MaxOverMean(problem, Balanced(problem));
      EXPECT_LE(reached, golden.max_over_mean[layer]);
      EXPECT_GE(reached, LowerBoundOverMean(problem) * (1 - kRounding));
    }
  }
}

TEST(BalancedPlanTest, SpreadsAHotExpertOverNodesWhereOneNodeCannotHoldItsLoad) {
  const EplbCase golden = ReadEplbCases()[2];
  ASSERT_EQ(golden.name, "one-hot-expert");
  for (size_t layer = 0; layer < golden.problems.size(); ++layer) {
    const BalancedLayer plan = Balanced(golden.problems[layer]);
    EXPECT_GT(golden.max_over_mean[layer], 4.2);
    EXPECT_LT(MaxOverMean(golden.problems[layer], plan), 1.01);
    EXPECT_FALSE(KeepsNodeLimit(golden.problems[layer], plan));
  }
}

TEST(BalancedPlanTest, KeepsGroupsOnNodesWhereThatCostsLittle) {
  // Two groups of even experts on two nodes: both plans are perfect, one keeps the node limit.
  const BalanceProblem problem = Problem({5, 5, 5, 5, 5, 5, 5, 5}, {2, 2, 2, 2}, 2, 2);
  const BalancedLayer plan = Balanced(problem);
  EXPECT_TRUE(KeepsNodeLimit(problem, plan));
  EXPECT_DOUBLE_EQ(MaxOverMean(problem, plan), 1);
}

TEST(BalancedPlanTest, TakesAnyCountsAndUnequalCapacities) {
  // 5 experts, devices of 1, 4 and 2 slots; the small device gets the share that fits it.
  const BalanceProblem problem = Problem({70, 10, 10, 10, 5}, {1, 4, 2});
  const BalancedLayer plan = Balanced(problem);
  EXPECT_EQ(plan.replica_count[0], 3);
  EXPECT_LT(MaxOverMean(problem, plan), 1.40);
  // More slots than all devices have use for stay empty.
  const BalancedLayer single = Balanced(Problem({3, 4}, {5}));
  EXPECT_EQ(std::count(single.expert_of_slot.begin(), single.expert_of_slot.end(), kEmptySlot), 3);
  // A device without slots works for nobody.
  EXPECT_DOUBLE_EQ(MaxOverMean(Problem({2, 2}, {0, 2}), Balanced(Problem({2, 2}, {0, 2}))), 2);
}

TEST(BalancedPlanTest, WithoutLoadEveryExpertStillHasAReplica) {
  const BalanceProblem problem = Problem({0, 0, 0}, {2, 2});
  EXPECT_EQ(MaxOverMean(problem, Balanced(problem)), 1);
  EXPECT_EQ(LowerBoundOverMean(problem), 1);
}

TEST(BalancedPlanPropertyTest, AnswersAreValidAboveTheBoundAndNoWorseThanEplb) {
  const uint64_t seed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  int compared = 0, with_doubles = 0, heavier_than_doubles = 0;
  for (int trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const BalanceProblem problem = RandomProblem(random);
    const BalancedLayer plan = Balanced(problem);
    EXPECT_EQ(plan, Balanced(problem));
    const double reached = MaxOverMean(problem, plan);
    EXPECT_GE(reached, LowerBoundOverMean(problem) * (1 - kRounding));
    const absl::StatusOr<BalancedLayer> eplb = PlanEplb(problem);
    if (!eplb.ok()) continue;
    EXPECT_TRUE(ValidateBalancedLayer(problem, *eplb, ReplicaRule::kAnywhere).ok());
    const double of_eplb = MaxOverMean(problem, *eplb);
    // Two replicas on one device may split an expert as no distinct devices can.
    if (!ValidateBalancedLayer(problem, *eplb, ReplicaRule::kDistinctDevices).ok()) {
      ++with_doubles;
      heavier_than_doubles += static_cast<int>(reached > of_eplb * (1 + kRounding));
      continue;
    }
    EXPECT_THAT(reached, Le(of_eplb * (1 + kRounding)));
    ++compared;
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 40);
  EXPECT_GT(with_doubles, 10);
  EXPECT_LE(10 * heavier_than_doubles, with_doubles)
      << heavier_than_doubles << " of " << with_doubles;
}

// Experts in ranges over devices of `slots` each, one replica.
BalancedLayer InRanges(const BalanceProblem& problem) {
  BalancedLayer layer;
  layer.replica_count.assign(problem.load.size(), 1);
  int32_t expert = 0;
  for (const int32_t slots : problem.device_slots) {
    for (int32_t slot = 0; slot < slots; ++slot) {
      layer.expert_of_slot.push_back(expert < problem.num_experts() ? expert++ : kEmptySlot);
    }
  }
  return layer;
}

TEST(RebalanceTest, AllowsItselfNoMoreThanTheBudgetAndUsesItWell) {
  Random random(3);
  std::vector<BalanceProblem> problems;
  std::vector<BalancedLayer> before;
  for (int layer = 0; layer < 4; ++layer) {
    std::vector<int64_t> load;
    for (int expert = 0; expert < 32; ++expert) {
      load.push_back(static_cast<int64_t>(100'000 / (1 + random.Below(32))));
    }
    problems.push_back(Problem(std::move(load), std::vector<int32_t>(8, 5)));
    before.push_back(InRanges(problems.back()));
  }
  const auto worst = [&problems](const std::vector<BalancedLayer>& layers) {
    double max = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      max = std::max(max, MaxOverMean(problems[i], layers[i]));
    }
    return max;
  };
  double last = worst(before);
  for (const int64_t budget : {0, 4, 16, 1000}) {
    const Rebalance rebalance = *PlanRebalance(problems, before, budget);
    int64_t loaded = 0;
    for (size_t i = 0; i < problems.size(); ++i) {
      EXPECT_TRUE(
          ValidateBalancedLayer(problems[i], rebalance.layers[i], ReplicaRule::kDistinctDevices)
              .ok());
      loaded += CountLoaded(problems[i], before[i], rebalance.layers[i]);
      EXPECT_LE(MaxOverMean(problems[i], rebalance.layers[i]),
                MaxOverMean(problems[i], before[i]) * (1 + kRounding));
    }
    EXPECT_LE(loaded, budget);
    EXPECT_LE(loaded, rebalance.num_loaded);
    EXPECT_EQ(rebalance.limited, budget < 1000);
    const double now = worst(rebalance.layers);
    EXPECT_TRUE(budget == 0 ? now == last : now < last) << budget << ": " << now;
    last = now;
  }
  EXPECT_LT(last, 1.05);
}

TEST(RebalanceTest, LeavesABalancedLayerAlone) {
  const BalanceProblem problem = Problem({4, 4, 4, 4}, {2, 2});
  const std::vector<BalancedLayer> before = {{{3, 0, 1, 2}, {1, 1, 1, 1}}};
  const Rebalance rebalance = *PlanRebalance({&problem, 1}, before, 100);
  EXPECT_EQ(rebalance.layers, before);
  EXPECT_EQ(rebalance.num_loaded, 0);
  EXPECT_FALSE(rebalance.limited);
}

TEST(RebalanceTest, RenamesDevicesSoThatMostStaysWhereItIs) {
  // Expert 0 alone is too heavy: it gets a second replica, and little else moves.
  const BalanceProblem problem = Problem({40, 10, 10, 10, 10, 10}, {3, 3, 3});
  const std::vector<BalancedLayer> before = {
      {{5, 4, kEmptySlot, 3, 2, kEmptySlot, 1, 0, kEmptySlot}, {1, 1, 1, 1, 1, 1}}};
  const Rebalance rebalance = *PlanRebalance({&problem, 1}, before, 100);
  EXPECT_LE(rebalance.num_loaded, 6);
  EXPECT_LE(MaxOverMean(problem, rebalance.layers[0]), 1.12);
}

}  // namespace
}  // namespace moebius
