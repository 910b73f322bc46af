// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/capacity.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/routing/gate.h"
#include "tests/routing/routing_fixture.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CapacityOrder kOrders[] = {CapacityOrder::kWeight, CapacityOrder::kPosition,
                                     CapacityOrder::kToken};
constexpr CapacityOverflow kOverflows[] = {CapacityOverflow::kDrop,
                                           CapacityOverflow::kDropRenormalize,
                                           CapacityOverflow::kNextBest, CapacityOverflow::kReject};

CapacityPolicy Policy(double factor, CapacityOrder order = CapacityOrder::kWeight,
                      CapacityOverflow overflow = CapacityOverflow::kDrop) {
  CapacityPolicy policy;
  policy.factor = factor;
  policy.order = order;
  policy.overflow = overflow;
  return policy;
}

Assignments Rows(const std::vector<std::vector<std::pair<int32_t, float>>>& rows) {
  Assignments assignments;
  assignments.Reset(static_cast<int64_t>(rows.size()), static_cast<int32_t>(rows[0].size()));
  size_t place = 0;
  for (const auto& row : rows) {
    for (const auto& [id, weight] : row) {
      assignments.expert_ids[place] = id;
      assignments.weights[place++] = weight;
    }
  }
  return assignments;
}

CapacityResult Apply(const CapacityPolicy& policy, int32_t num_experts, Assignments* assignments,
                     const GateInput& gate = GateInput()) {
  CapacityLimiter limiter;
  CapacityResult result;
  limiter.Apply(policy, num_experts, gate, assignments, &result);
  const absl::Status valid = ValidateCapacityResult(*assignments, result);
  EXPECT_TRUE(valid.ok()) << valid;
  return result;
}

TEST(CapacityTest, IsTheCeilingOfTheFactorTimesTheEvenShare) {
  EXPECT_EQ(ExpertCapacity(Policy(1.25), 26, 4, 32), 5);   // 4.06
  EXPECT_EQ(ExpertCapacity(Policy(1), 26, 4, 32), 4);      // 3.25
  EXPECT_EQ(ExpertCapacity(Policy(1), 8, 2, 4), 4);        // exactly 4
  EXPECT_EQ(ExpertCapacity(Policy(1.1), 100, 1, 10), 11);  // 11, whatever 1.1 is as a double
  EXPECT_EQ(ExpertCapacity(Policy(0.001), 8, 2, 4), 1);
  CapacityPolicy at_least = Policy(0.5);
  at_least.min_capacity = 7;
  EXPECT_EQ(ExpertCapacity(at_least, 8, 2, 4), 7);
  EXPECT_EQ(ExpertCapacity(Policy(1), 0, 2, 4), 1);
  EXPECT_GT(ExpertCapacity(Policy(1e300), int64_t{1} << 40, 16, 4), int64_t{1} << 40);
}

TEST(CapacityTest, AFactorOfExpertsOverChoicesDropsNothing) {
  for (const auto& [num_experts, top_k] :
       std::vector<std::pair<int32_t, int32_t>>{{256, 6}, {32, 4}, {7, 3}, {896, 16}, {1, 1}}) {
    for (const int64_t rows : {1, 3, 1000, 1 << 30}) {
      EXPECT_GE(ExpertCapacity(Policy(static_cast<double>(num_experts) / top_k), rows, top_k,
                               num_experts),
                rows)
          << num_experts << " " << top_k << " " << rows;
    }
  }
}

// Three rows want expert 0 with weights 0.5, 0.9, 0.5 as first, second and first choice; it takes 1
// or 2 of them.
Assignments ThreeForOne() {
  return Rows({{{0, 0.5f}, {1, 0.1f}}, {{2, 0.9f}, {0, 0.9f}}, {{0, 0.5f}, {3, 0.2f}}});
}
// 4 experts, 3 rows of 2: C = ceil(CF · 1.5).
constexpr double kOne = 0.5, kTwo = 1.3;

TEST(CapacityTest, KeepsByWeightThenByTokenAndChoice) {
  Assignments one = ThreeForOne();
  const CapacityResult result = Apply(Policy(kOne), 4, &one);
  EXPECT_EQ(result.capacity, 1);
  EXPECT_THAT(one.expert_ids, ElementsAre(MarkDropped(0), 1, 2, 0, MarkDropped(0), 3));
  EXPECT_THAT(result.demand, ElementsAre(3, 1, 1, 1));
  EXPECT_THAT(result.dropped, ElementsAre(2, 0, 0, 0));
  EXPECT_THAT(result.dropped_of_row, ElementsAre(1, 0, 1));
  EXPECT_EQ(result.total_dropped, 2);
  Assignments two = ThreeForOne();
  Apply(Policy(kTwo), 4, &two);
  EXPECT_THAT(two.expert_ids, ElementsAre(0, 1, 2, 0, MarkDropped(0), 3));  // of equals the first
}

TEST(CapacityTest, KeepsByPositionFirstChoicesBeforeSecondOnes) {
  Assignments two = ThreeForOne();
  Apply(Policy(kTwo, CapacityOrder::kPosition), 4, &two);
  EXPECT_THAT(two.expert_ids, ElementsAre(0, 1, 2, MarkDropped(0), 0, 3));
}

TEST(CapacityTest, KeepsByTokenWhoeverComesFirst) {
  Assignments two = ThreeForOne();
  Apply(Policy(kTwo, CapacityOrder::kToken), 4, &two);
  EXPECT_THAT(two.expert_ids, ElementsAre(0, 1, 2, 0, MarkDropped(0), 3));
  Assignments one = ThreeForOne();
  Apply(Policy(kOne, CapacityOrder::kToken), 4, &one);
  EXPECT_THAT(one.expert_ids, ElementsAre(0, 1, 2, MarkDropped(0), MarkDropped(0), 3));
}

TEST(CapacityTest, DropLeavesTheOtherWeightsAndRenormalizeKeepsTheirSum) {
  Assignments dropped = ThreeForOne();
  Apply(Policy(kOne), 4, &dropped);
  EXPECT_EQ(dropped.weights, ThreeForOne().weights);
  Assignments renormalized = ThreeForOne();
  Apply(Policy(kOne, CapacityOrder::kWeight, CapacityOverflow::kDropRenormalize), 4, &renormalized);
  // Row 0 had 0.6 in all and keeps expert 1; row 2 had 0.7 and keeps expert 3.
  EXPECT_FLOAT_EQ(renormalized.weights[1], 0.6f);
  EXPECT_FLOAT_EQ(renormalized.weights[2], 0.9f);
  EXPECT_FLOAT_EQ(renormalized.weights[3], 0.9f);
  EXPECT_FLOAT_EQ(renormalized.weights[5], 0.7f);
}

TEST(CapacityTest, ARowThatKeepsNothingIsLeftWithNothing) {
  Assignments rows = Rows({{{0, 0.9f}}, {{0, 0.5f}}});
  Apply(Policy(0.5, CapacityOrder::kWeight, CapacityOverflow::kDropRenormalize), 2, &rows);
  EXPECT_THAT(rows.expert_ids, ElementsAre(0, MarkDropped(0)));
  EXPECT_TRUE(std::isfinite(rows.weights[1]));
}

TEST(CapacityTest, RejectLeavesTheWholeRowOutAndNamesIt) {
  Assignments rows = ThreeForOne();
  const CapacityResult result =
      Apply(Policy(kTwo, CapacityOrder::kWeight, CapacityOverflow::kReject), 4, &rows);
  EXPECT_THAT(result.rejected_rows, ElementsAre(2));
  EXPECT_THAT(rows.expert_ids, ElementsAre(0, 1, 2, 0, MarkDropped(0), MarkDropped(3)));
  EXPECT_EQ(result.total_dropped, 2);
}

// A gate of 6 experts in 3 groups of which 2 stay, k = 2, scores by sigmoid, no bias.
GateConfig SmallGate() {
  GateConfig config;
  config.num_experts = 6;
  config.top_k = 2;
  config.num_groups = 3;
  config.num_kept_groups = 2;
  config.score_function = ScoreFunction::kSigmoid;
  config.normalize_weights = true;
  config.routed_scaling_factor = 2;
  return config;
}

TEST(CapacityTest, NextBestTakesTheBestExpertWithRoomInsideTheKeptGroups) {
  const GateConfig config = SmallGate();
  // Both rows choose 0 and 1; then 2, 3 follow. Group {4, 5} is outside.
  const std::vector<float> logits = {3, 2, 1, 0, -1, -1, 3.5f, 2.5f, 1, 0, -1, -1};
  const FloatRows rows(logits.data(), 2, 6);
  Assignments assignments;
  GateCounts counts;
  SelectExperts(config, GroupFill::kNegativeInfinity, rows, {}, &assignments, &counts);
  ASSERT_THAT(assignments.expert_ids, ElementsAre(0, 1, 0, 1));
  const std::vector<float> before = assignments.weights;
  const CapacityPolicy policy = Policy(1, CapacityOrder::kWeight, CapacityOverflow::kNextBest);
  const CapacityResult result = Apply(policy, 6, &assignments, {&config, rows, {}});
  EXPECT_EQ(result.capacity, 1);
  // By weight, normalised: row 0 keeps 0 (0.52 of 2), row 1 keeps 1.
  EXPECT_THAT(assignments.expert_ids, ElementsAre(0, 2, 2 + 1, 1));
  EXPECT_THAT(result.rerouted_out, ElementsAre(1, 1, 0, 0, 0, 0));
  EXPECT_THAT(result.rerouted_in, ElementsAre(0, 0, 1, 1, 0, 0));
  EXPECT_THAT(result.rerouted_of_row, ElementsAre(1, 1));
  EXPECT_EQ(result.total_dropped, 0);
  // What stays keeps its weight; what moves has its own score on the row's scale.
  EXPECT_EQ(assignments.weights[0], before[0]);
  EXPECT_EQ(assignments.weights[3], before[3]);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(assignments.weights[1], 2 * sigmoid(1) / (sigmoid(3) + sigmoid(2)), 1e-6);
  EXPECT_NEAR(assignments.weights[2], 2 * sigmoid(0) / (sigmoid(3.5) + sigmoid(2.5)), 1e-6);
}

TEST(CapacityTest, NextBestLooksAtABoundedNumberOfExpertsAndThenDrops) {
  const GateConfig config = SmallGate();
  const std::vector<float> logits = {3, 2, 1, 0, -1, -1, 3.5f, 2.5f, 1, 0, -1, -1};
  const FloatRows rows(logits.data(), 2, 6);
  Assignments assignments;
  GateCounts counts;
  SelectExperts(config, GroupFill::kNegativeInfinity, rows, {}, &assignments, &counts);
  CapacityPolicy policy = Policy(1, CapacityOrder::kWeight, CapacityOverflow::kNextBest);
  policy.max_tries = 1;  // row 1 looks at expert 2 alone, which row 0 has taken
  const CapacityResult result = Apply(policy, 6, &assignments, {&config, rows, {}});
  EXPECT_THAT(assignments.expert_ids, ElementsAre(0, 2, MarkDropped(0), 1));
  EXPECT_EQ(result.total_rerouted, 1);
  EXPECT_THAT(result.dropped, ElementsAre(1, 0, 0, 0, 0, 0));
}

TEST(CapacityTest, DroplessAndDenseLayersChangeNothing) {
  Assignments rows = ThreeForOne();
  const CapacityResult result = Apply(CapacityPolicy(), 4, &rows);
  EXPECT_EQ(rows.expert_ids, ThreeForOne().expert_ids);
  EXPECT_THAT(result.demand, ElementsAre(3, 1, 1, 1));
  EXPECT_THAT(result.dropped_of_row, IsEmpty());
  Assignments dense;
  dense.Reset(5, 0);
  EXPECT_EQ(Apply(Policy(1), 4, &dense).total_dropped, 0);
  Assignments none;
  none.Reset(0, 2);
  EXPECT_EQ(Apply(Policy(1), 4, &none).total_dropped, 0);
}

TEST(CapacityTest, RefusedRowsNeitherCountNorTakeRoom) {
  Assignments rows = ThreeForOne();
  rows.expert_ids[2] = rows.expert_ids[3] = kNoExpert;
  rows.weights[2] = rows.weights[3] = 0;
  rows.refused_rows = {1};
  // Two rows are left: C = ceil(1 · 2 · 2 / 4) = 1.
  const CapacityResult result = Apply(Policy(1), 4, &rows);
  EXPECT_EQ(result.capacity, 1);
  EXPECT_THAT(rows.expert_ids, ElementsAre(0, 1, kNoExpert, kNoExpert, MarkDropped(0), 3));
}

TEST(CapacityTest, ReadsAPolicyAndNamesTheFlagThatIsWrong) {
  const CapacityPolicy policy = *ParseCapacity({"1.25", "3", "position", "next_best"});
  EXPECT_EQ(policy.factor, 1.25);
  EXPECT_EQ(policy.min_capacity, 3);
  EXPECT_EQ(policy.order, CapacityOrder::kPosition);
  EXPECT_EQ(policy.overflow, CapacityOverflow::kNextBest);
  EXPECT_EQ(DescribeCapacity(policy),
            "capacity factor 1.25 by position, next_best; of all rows of a step");
  EXPECT_TRUE(ParseCapacity({})->dropless());
  const auto message = [](const CapacityText& text) {
    return std::string(ParseCapacity(text).status().message());
  };
  EXPECT_THAT(message({"1,25", "", "", ""}), HasSubstr("--capacity-factor"));
  EXPECT_THAT(message({"-1", "", "", ""}), HasSubstr("factor is -1"));
  EXPECT_THAT(message({"1", "0", "", ""}), HasSubstr("min_capacity is 0"));
  EXPECT_THAT(message({"1", "", "size", ""}), HasSubstr("--capacity-by is 'size'"));
  EXPECT_THAT(message({"1", "", "", "lose"}), HasSubstr("--capacity-overflow is 'lose'"));
  EXPECT_THAT(message({"", "", "token", ""}), HasSubstr("needs --capacity-factor"));
}

// Two rows with the same scores and one expert that both want: whatever is added to that expert's
// score, both get it or neither does. A total order gives it to exactly one, always the same one.
TEST(CapacityTest, ABiasTreatsTwoEqualTokensAlikeAndACapacityDoesNot) {
  GateConfig config;
  config.num_experts = 4;
  config.top_k = 1;
  config.score_function = ScoreFunction::kSigmoid;
  config.has_correction_bias = true;
  const std::vector<float> logits = {2, 1, 0, 0, 2, 1, 0, 0};
  const FloatRows rows(logits.data(), 2, 4);
  Assignments assignments;
  GateCounts counts;
  for (float bias = -1; bias <= 1; bias += 0.001f) {
    const std::vector<float> biases = {bias, 0, 0, 0};
    SelectExperts(config, GroupFill::kNegativeInfinity, rows, biases, &assignments, &counts);
    ASSERT_NE(std::count(assignments.expert_ids.begin(), assignments.expert_ids.end(), 0), 1)
        << "bias " << bias;
  }
  const std::vector<float> none(4, 0.0f);
  for (const CapacityOrder order : kOrders) {
    SelectExperts(config, GroupFill::kNegativeInfinity, rows, none, &assignments, &counts);
    const CapacityResult result = Apply(Policy(2, order), 4, &assignments);  // C = 1
    EXPECT_THAT(assignments.expert_ids, ElementsAre(0, MarkDropped(0)));
    EXPECT_EQ(result.total_dropped, 1);
  }
}

TEST(CapacityPropertyTest, EveryPolicyKeepsItsRulesAndGivesTheSameBitsOnAnyServices) {
  const uint64_t seed = 29;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  CapacityLimiter limiter;
  CapacityResult result;
  DispatchPlan plan;
  for (int trial = 0; trial < 60; ++trial) {
    GateConfig config;
    config.num_groups = 1 + static_cast<int32_t>(random.Below(4));
    config.num_kept_groups = 1 + static_cast<int32_t>(random.Below(config.num_groups));
    const int32_t width = 1 + static_cast<int32_t>(random.Below(trial % 10 == 0 ? 224 : 12));
    config.num_experts = config.num_groups * width;
    const int32_t most = std::min(kMaxTopK, width * config.num_kept_groups);
    config.top_k = 1 + static_cast<int32_t>(random.Below(most));
    config.score_function =
        random.Below(2) == 0 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    config.normalize_weights = random.Below(2) == 0;
    const auto num_rows = static_cast<int64_t>(random.Below(trial % 7 == 0 ? 300 : 20));
    RowBatch<float> logits(num_rows, config.num_experts);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (float& logit : logits.rows().span(row)) logit = random.Normal() + (random.Below(4) == 0);
      if (random.Below(11) == 0) logits.rows().span(row)[0] = HUGE_VALF;
    }
    CapacityPolicy policy = Policy(0.1 + static_cast<double>(random.Below(30)) / 10);
    policy.max_tries = 1 + static_cast<int32_t>(random.Below(6));
    for (const CapacityOrder order : kOrders) {
      for (const CapacityOverflow overflow : kOverflows) {
        SCOPED_TRACE(testing::Message() << "trial " << trial << " order " << static_cast<int>(order)
                                        << " overflow " << static_cast<int>(overflow));
        policy.order = order;
        policy.overflow = overflow;
        RoutingCase layer;
        layer.rule = LayerRule{LayerId(0), config.num_experts, config.num_groups, 1};
        layer.hidden_size = 3;
        GateCounts counts;
        SelectExperts(config, GroupFill::kNegativeInfinity, logits.rows(), {}, &layer.assignments,
                      &counts);
        limiter.Apply(policy, config.num_experts, {&config, logits.rows(), {}}, &layer.assignments,
                      &result);
        const absl::Status valid = ValidateCapacityResult(layer.assignments, result);
        ASSERT_TRUE(valid.ok()) << valid;
        const std::vector<uint16_t> expected = BitsOf(ReferenceOutput(layer));
        const PlacementShape shape = PlacementShape::Make(config.num_experts, {true}, 1, 0);
        for (const int32_t services : {1, 3, 64}) {
          const Placement placement = RandomPlacement(random, shape, services, 3);
          const DispatchLimits limits;
          ASSERT_TRUE(
              BuildDispatchPlan(layer.rule, layer.assignments, placement, limits, &plan).ok());
          const absl::Status planned =
              ValidateDispatchPlan(plan, layer.assignments, placement, limits);
          ASSERT_TRUE(planned.ok()) << planned;
          ASSERT_EQ(plan.counts().dropped, result.total_dropped);
          ASSERT_EQ(BitsOf(CombineReplies(plan, BestKernels(), layer.hidden_size)), expected);
        }
      }
    }
  }
}

TEST(CandidateRankingTest, BeginsWithTheGatesOwnChoiceAndItsWeights) {
  Random random(8);
  GateConfig config = SmallGate();
  config.num_experts = 24;
  config.top_k = 3;
  CandidateRanking ranking;
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<float> logits(24), bias(24);
    for (float& logit : logits) logit = random.Normal();
    for (float& value : bias) value = random.Normal() * 0.1f;
    Assignments assignments;
    GateCounts counts;
    SelectExperts(config, GroupFill::kNegativeInfinity, FloatRows(logits.data(), 1, 24), bias,
                  &assignments, &counts);
    ranking.Rank(config, logits, bias);
    ASSERT_EQ(ranking.all().size(), 16u);
    for (size_t choice = 0; choice < 3; ++choice) {
      ASSERT_EQ(ranking.all()[choice].expert, assignments.expert_ids[choice]);
      ASSERT_EQ(ranking.all()[choice].weight, assignments.weights[choice]);
    }
  }
}

}  // namespace
}  // namespace moebius
