// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/bias_balancer.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/routing/gate.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;

BiasBalancer Balancer(const BiasOptions& options, size_t num_experts) {
  return BiasBalancer(options, std::vector<float>(num_experts, 0.0f));
}

void Show(BiasBalancer& balancer, std::vector<int64_t> demand, float spread = 0) {
  balancer.Observe(demand, spread);
  balancer.EndWindow();
}

TEST(BiasBalancerTest, MovesEachBiasAgainstItsDemandByOneStep) {
  BiasBalancer balancer = Balancer(BiasOptions(), 4);
  Show(balancer, {7, 4, 4, 1});
  EXPECT_THAT(balancer.bias(), ElementsAre(-0.001f, 0.0f, 0.0f, 0.001f));
  EXPECT_DOUBLE_EQ(balancer.max_violation(), 0.75);
  EXPECT_EQ(balancer.version(), 1u);
}

TEST(BiasBalancerTest, TakesAWindowsDemandTogether) {
  BiasBalancer balancer = Balancer(BiasOptions(), 2);
  balancer.Observe({9, 1}, 0);
  balancer.Observe({1, 9}, 0);
  EXPECT_EQ(balancer.observed(), 20);
  balancer.EndWindow();
  EXPECT_THAT(balancer.bias(), ElementsAre(0.0f, 0.0f));  // even in sum
  EXPECT_EQ(balancer.observed(), 0);
}

TEST(BiasBalancerTest, TellsDemandFromItsMeanInWholeNumbers) {
  // The mean is 2^60 + 1/3: as a double it would be the demand of the second expert.
  BiasBalancer balancer = Balancer(BiasOptions(), 3);
  const int64_t large = int64_t{1} << 60;
  Show(balancer, {large - 1, large, large + 2});
  EXPECT_THAT(balancer.bias(), ElementsAre(0.001f, 0.001f, -0.001f));
}

TEST(BiasBalancerTest, MovesInProportionWhereThatIsTheRule) {
  BiasOptions options;
  options.rule = BiasRule::kProportional;
  BiasBalancer balancer = Balancer(options, 4);
  Show(balancer, {14, 2, 0, 0});
  // Mean 4: (4 − 14)/4 is cut off at −1.
  EXPECT_THAT(balancer.bias(),
              ElementsAre(FloatEq(-0.001f), FloatEq(0.0005f), FloatEq(0.001f), FloatEq(0.001f)));
}

TEST(BiasBalancerTest, ScalesItsStepByTheSpreadOfTheScores) {
  BiasOptions options;
  options.unit = BiasUnit::kSpread;
  BiasBalancer balancer = Balancer(options, 2);
  // Half of the assignments at a hundredth of the spread, half at three hundredths.
  balancer.Observe({8, 2}, kUnitSpread / 100);
  balancer.Observe({8, 2}, kUnitSpread * 3 / 100);
  balancer.EndWindow();
  EXPECT_THAT(balancer.bias(), ElementsAre(FloatEq(-0.00002f), FloatEq(0.00002f)));
  EXPECT_EQ(BiasUnitOf(ScoreFunction::kSigmoid), BiasUnit::kScore);
  EXPECT_EQ(BiasUnitOf(ScoreFunction::kSoftmax), BiasUnit::kSpread);
}

TEST(BiasBalancerTest, KeepsWithinItsLimitOfTheCheckpointsBias) {
  BiasOptions options;
  options.gamma = 0.3f;
  options.limit = 0.5f;
  BiasBalancer balancer(options, {1.0f, -1.0f});
  for (int window = 0; window < 5; ++window) Show(balancer, {10, 0});
  EXPECT_THAT(balancer.bias(), ElementsAre(0.5f, -0.5f));
  EXPECT_EQ(balancer.max_delta(), 0.5f);
  EXPECT_TRUE(
      balancer.Set(std::vector<float>(balancer.bias().begin(), balancer.bias().end())).ok());
}

TEST(BiasBalancerTest, AWindowWithoutDemandChangesNothing) {
  BiasBalancer balancer = Balancer(BiasOptions(), 2);
  Show(balancer, {0, 0});
  EXPECT_EQ(balancer.version(), 0u);
  EXPECT_THAT(balancer.bias(), ElementsAre(0.0f, 0.0f));
}

TEST(BiasBalancerTest, ResetGoesBackToTheCheckpoint) {
  BiasBalancer balancer(BiasOptions(), {0.25f, 0.5f});
  Show(balancer, {3, 1});
  balancer.Observe({100, 0}, 0);
  balancer.Reset();
  EXPECT_THAT(balancer.bias(), ElementsAre(0.25f, 0.5f));
  EXPECT_EQ(balancer.version(), 2u);
  balancer.EndWindow();  // what was observed before is forgotten
  EXPECT_THAT(balancer.bias(), ElementsAre(0.25f, 0.5f));
}

TEST(BiasBalancerTest, RefusesBiasesThatCannotBeAndChangesNothing) {
  BiasBalancer balancer = Balancer(BiasOptions(), 2);
  const auto refusal = [&balancer](std::vector<float> bias) {
    return std::string(balancer.Set(bias).message());
  };
  EXPECT_THAT(refusal({0.1f}), HasSubstr("1 values for 2 experts"));
  EXPECT_THAT(refusal({0, 0.6f}), HasSubstr("0.6 for expert 1"));
  EXPECT_THAT(refusal({std::numeric_limits<float>::quiet_NaN(), 0}), HasSubstr("for expert 0"));
  EXPECT_EQ(balancer.version(), 0u);
  EXPECT_TRUE(balancer.Set(std::vector<float>{0.5f, -0.5f}).ok());
  EXPECT_EQ(balancer.version(), 1u);
  BiasOptions options;
  options.gamma = 0;
  EXPECT_THAT(std::string(ValidateBiasOptions(options).message()), HasSubstr("gamma is 0"));
  options = BiasOptions();
  options.limit = std::numeric_limits<float>::infinity();
  EXPECT_THAT(std::string(ValidateBiasOptions(options).message()), HasSubstr("limit is inf"));
}

TEST(BiasBalancerTest, MaxViolationIsTheHeaviestOverTheMeanLessOne) {
  EXPECT_DOUBLE_EQ(MaxViolation({6, 3, 5, 2}), 0.5);
  EXPECT_DOUBLE_EQ(MaxViolation({4, 4}), 0);
  EXPECT_DOUBLE_EQ(MaxViolation({0, 0}), 0);
}

GateConfig SmallGate(ScoreFunction function) {
  GateConfig config;
  config.num_experts = 8;
  config.top_k = 2;
  config.score_function = function;
  config.normalize_weights = true;
  config.has_correction_bias = true;
  return config;
}

// Rows of which most want expert 0.
RowBatch<float> SkewedLogits(int64_t num_rows, uint64_t seed) {
  Random random(seed);
  RowBatch<float> logits(num_rows, 8);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int32_t expert = 0; expert < 8; ++expert) {
      logits.rows().row(row)[expert] = random.Normal() + (expert == 0 ? 3.0f : -0.2f * expert);
    }
  }
  return logits;
}

TEST(BiasBalancerTest, SpreadIsTheDistanceOfScoresThatCompete) {
  GateConfig config = SmallGate(ScoreFunction::kSigmoid);
  // k = 2: the second best score is sigmoid(1), the fourth best sigmoid(0).
  const std::vector<float> logits = {9, 1, 0.5f, 0, -1, -1, -1, -1, HUGE_VALF, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_NEAR(ScoreSpread(config, FloatRows(logits.data(), 2, 8)), 0.2310586, 1e-6);
  EXPECT_EQ(ScoreSpread(config, FloatRows(logits.data(), 0, 8)), 0);
}

TEST(BiasBalancerTest, EvensOutASkewedGateAndNeverTouchesAWeight) {
  const GateConfig config = SmallGate(ScoreFunction::kSigmoid);
  const RowBatch<float> logits = SkewedLogits(8000, 3);  // 2,000 assignments per expert
  BiasOptions options;
  options.gamma = 0.004f;
  options.limit = 1;
  BiasBalancer balancer = Balancer(options, 8);
  Assignments before, after;
  GateCounts counts;
  const auto select = [&](Assignments* assignments) {
    SelectExperts(config, GroupFill::kNegativeInfinity, logits.rows(), balancer.bias(), assignments,
                  &counts);
    std::vector<int64_t> demand(8, 0);
    for (const int32_t id : assignments->expert_ids) ++demand[static_cast<size_t>(id)];
    return demand;
  };
  const double at_first = MaxViolation(select(&before));
  EXPECT_GT(at_first, 2.5);
  for (int window = 0; window < 200; ++window) Show(balancer, select(&after));
  EXPECT_LT(MaxViolation(select(&after)), 0.1);
  const int64_t changed = CountChangedRows(before, after);
  EXPECT_GT(changed, 0);
  EXPECT_LT(changed, 8000);
  // Where the set stayed, the weights did to the last bit, whatever the order of choice.
  int64_t compared = 0;
  for (int64_t row = 0; row < 8000; ++row) {
    if (before.RowIds(row)[0] != after.RowIds(row)[0] ||
        before.RowIds(row)[1] != after.RowIds(row)[1]) {
      continue;
    }
    ++compared;
    ASSERT_EQ(before.RowWeights(row), after.RowWeights(row));
  }
  EXPECT_GT(compared, 0);
}

TEST(BiasBalancerTest, CountsRowsWhoseSetChangedAndNotThoseInAnotherOrder) {
  Assignments a, b;
  for (Assignments* assignments : {&a, &b}) assignments->Reset(3, 2);
  a.expert_ids = {0, 1, 2, 3, 4, 5};
  b.expert_ids = {1, 0, 2, 4, 4, 5};
  EXPECT_EQ(CountChangedRows(a, b), 1);
}

}  // namespace
}  // namespace moebius
