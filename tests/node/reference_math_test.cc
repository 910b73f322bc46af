// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "node/reference_gate.h"
#include "node/reference_linear.h"
#include "node/reference_rope.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::FloatEq;
using testing::FloatNear;

TEST(ReferenceLinearTest, GivesWeightTimesRowPlusBiasForAnyNumberOfRows) {
  // Output o of row r is Σ_i (r + i) · (10 o + i) + o: exact in fp32.
  constexpr int64_t kInputs = 5, kOutputs = 37;
  RowBatch<float> weight(kOutputs, kInputs);
  std::vector<float> bias(kOutputs);
  for (int64_t o = 0; o < kOutputs; ++o) {
    bias[static_cast<size_t>(o)] = static_cast<float>(o);
    for (int64_t i = 0; i < kInputs; ++i) {
      weight.rows().row(o)[i] = static_cast<float>(10 * o + i);
    }
  }
  const ReferenceLinear linear(weight.rows(), bias);
  for (int64_t num_rows = 0; num_rows <= 9; ++num_rows) {
    RowBatch<float> in(num_rows, kInputs), out(num_rows, kOutputs);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < kInputs; ++i) in.rows().row(r)[i] = static_cast<float>(r + i);
    }
    linear.Apply(in.rows(), out.rows());
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t o = 0; o < kOutputs; ++o) {
        int64_t expected = o;
        for (int64_t i = 0; i < kInputs; ++i) expected += (r + i) * (10 * o + i);
        EXPECT_EQ(out.rows().row(r)[o], static_cast<float>(expected)) << r << " of " << num_rows;
      }
    }
  }
}

TEST(ReferenceLinearTest, KeepsWhatASumInFloatWouldLose) {
  const std::vector<float> weight = {1e8f, 1.0f, -1e8f};
  const ReferenceLinear linear(FloatRows(weight.data(), 1, 3));
  const std::vector<float> in = {1.0f, 1.0f, 1.0f};
  float out = 0;
  linear.Apply(FloatRows(in.data(), 1, 3), MutableFloatRows(&out, 1, 1));
  EXPECT_EQ(out, 1.0f);
}

TEST(ReferenceRmsNormTest, DividesByTheRootOfTheMeanSquare) {
  const std::vector<float> in = {3.0f, 4.0f}, weight = {1.0f, 2.0f};
  std::vector<float> out(2);
  ReferenceRmsNorm(in, weight, 0.0, absl::MakeSpan(out));
  EXPECT_THAT(out, ElementsAre(FloatEq(3 / std::sqrt(12.5f)), FloatEq(8 / std::sqrt(12.5f))));
  ReferenceRmsNorm(in, weight, 12.5, absl::MakeSpan(out));
  EXPECT_THAT(out, ElementsAre(FloatEq(0.6f), FloatEq(1.6f)));
}

TEST(ReferenceRopeTest, TurnsPairsOfTheConfiguredPairing) {
  RopeConfig config;
  config.dim = 4;
  config.theta = 10000;
  for (const RopePairing pairing : {RopePairing::kHalves, RopePairing::kInterleaved}) {
    config.pairing = pairing;
    const ReferenceRope rope(config, 2.0f);
    std::vector<float> cosines(2), sines(2), head = {1, 0, 0, 0};
    rope.AnglesAt(3, absl::MakeSpan(cosines), absl::MakeSpan(sines));
    EXPECT_THAT(cosines, ElementsAre(FloatEq(2 * std::cos(3.0f)), FloatEq(2 * std::cos(0.03f))));
    rope.Rotate(cosines, sines, absl::MakeSpan(head));
    const size_t partner = pairing == RopePairing::kHalves ? 2 : 1;
    EXPECT_FLOAT_EQ(head[0], 2 * std::cos(3.0f));
    EXPECT_FLOAT_EQ(head[partner], 2 * std::sin(3.0f));
    EXPECT_EQ(head[3], 0.0f);
  }
}

TEST(ReferenceRopeTest, TakesTheAngleThatFloatGives) {
  RopeConfig config;
  config.dim = 8;
  config.theta = 1e6;
  const ReferenceRope rope(config, 1.0f);
  std::vector<float> cosines(4), sines(4);
  constexpr int64_t kPosition = 60001;
  rope.AnglesAt(kPosition, absl::MakeSpan(cosines), absl::MakeSpan(sines));
  const float frequency = 1.0f / static_cast<float>(std::pow(1e6, 0.25));
  const double angle = static_cast<float>(kPosition) * frequency;
  EXPECT_EQ(cosines[1], static_cast<float>(std::cos(angle)));
  // The angle in double is another one: this is why the rule is written down.
  EXPECT_NE(cosines[1], static_cast<float>(std::cos(kPosition / std::pow(1e6, 0.25))));
}

TEST(ReferenceRopeTest, StretchesSlowPairsUnderYarnAndLeavesFastOnes) {
  RopeConfig config;
  config.dim = 16;
  config.yarn = YarnConfig{};
  config.yarn->factor = 8;
  config.yarn->original_max_positions = 2048;
  const ReferenceRope rope(config, 1.0f);
  std::vector<float> cosines(8), sines(8);
  rope.AnglesAt(1, absl::MakeSpan(cosines), absl::MakeSpan(sines));
  // floor(16 · ln(2048 / 64π) / 2 ln 10⁴) = 2 and ceil(16 · ln(2048 / 2π) / 2 ln 10⁴) = 6.
  const auto frequency = [](int pair) { return std::pow(1e4, -pair / 8.0); };
  EXPECT_FLOAT_EQ(std::asin(sines[1]), frequency(1));
  EXPECT_FLOAT_EQ(std::asin(sines[2]), frequency(2));
  EXPECT_THAT(std::asin(sines[4]), FloatNear(frequency(4) * (0.5 / 8 + 0.5), 1e-9));
  EXPECT_THAT(std::asin(sines[6]), FloatNear(frequency(6) / 8, 1e-10));
}

// A gate of 8 experts that are sure of their scores: logit(s) is ln(s / (1 - s)).
std::vector<float> LogitsOf(std::vector<float> scores) {
  for (float& score : scores) score = std::log(score / (1 - score));
  return scores;
}

struct Choice {
  std::vector<int16_t> experts;
  std::vector<float> weights;
};

Choice Choose(const GateConfig& config, const std::vector<float>& logits,
              const std::vector<float>& bias = {}, GroupFill fill = GroupFill::kNegativeInfinity) {
  Choice choice{std::vector<int16_t>(config.top_k), std::vector<float>(config.top_k)};
  ChooseReferenceExperts(config, fill, logits, bias, absl::MakeSpan(choice.experts),
                         absl::MakeSpan(choice.weights));
  return choice;
}

GateConfig SigmoidGate(int32_t num_groups, int32_t num_kept_groups) {
  GateConfig config;
  config.num_experts = 8;
  config.top_k = 2;
  config.num_groups = num_groups;
  config.num_kept_groups = num_kept_groups;
  config.score_function = ScoreFunction::kSigmoid;
  config.has_correction_bias = true;
  config.normalize_weights = true;
  config.routed_scaling_factor = 2.5f;
  return config;
}

TEST(ReferenceGateTest, ChoosesByBiasedAndWeighsByUnbiasedScores) {
  const std::vector<float> logits = LogitsOf({.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f});
  std::vector<float> bias(8, 0.0f);
  bias[1] = 1.0f;
  const Choice choice = Choose(SigmoidGate(1, 1), logits, bias);
  EXPECT_THAT(choice.experts, ElementsAre(1, 7));
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(2.5f * .2f), FloatEq(2.5f * .8f)));
}

TEST(ReferenceGateTest, KeepsTheGroupsWhoseTwoBestScoresSumHighest) {
  // Group 1 (ids 2, 3) has the best single score and loses to group 3.
  const std::vector<float> logits = LogitsOf({.1f, .1f, .9f, .1f, .2f, .2f, .6f, .5f});
  const Choice choice = Choose(SigmoidGate(4, 1), logits, std::vector<float>(8, 0.0f));
  EXPECT_THAT(choice.experts, ElementsAre(6, 7));
}

TEST(ReferenceGateTest, FillsOutsideTheKeptGroupsAsToldWhenBiasedScoresAreNegative) {
  const std::vector<float> logits = LogitsOf({.5f, .5f, .6f, .3f, .5f, .5f, .5f, .5f});
  const std::vector<float> bias(8, -0.4f);  // expert 3 becomes -0.1
  const GateConfig config = SigmoidGate(4, 1);
  const std::vector<float> lower = LogitsOf({.2f, .2f, .6f, .3f, .2f, .2f, .2f, .2f});
  EXPECT_THAT(Choose(config, lower, bias, GroupFill::kNegativeInfinity).experts, ElementsAre(2, 3));
  // 0.0 outside beats -0.1 inside, and the lowest of the equals is taken.
  EXPECT_THAT(Choose(config, lower, bias, GroupFill::kZero).experts, ElementsAre(0, 2));
}

TEST(ReferenceGateTest, BreaksTiesByTheLowestId) {
  const Choice choice =
      Choose(SigmoidGate(4, 2), std::vector<float>(8, 0.0f), std::vector<float>(8, 0.0f));
  EXPECT_THAT(choice.experts, ElementsAre(0, 1));
}

TEST(ReferenceGateTest, GivesZeroWeightsWhenAllScoresUnderflow) {
  const Choice choice =
      Choose(SigmoidGate(1, 1), std::vector<float>(8, -1000.0f), std::vector<float>(8, 0.0f));
  EXPECT_THAT(choice.weights, ElementsAre(0.0f, 0.0f));
}

TEST(ReferenceGateTest, RenormalisesSoftmaxOnlyWhereTheModelDoes) {
  GateConfig config;
  config.num_experts = 4;
  config.top_k = 2;
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f),
                                     std::log(3.0f)};
  Choice choice = Choose(config, logits);
  EXPECT_THAT(choice.experts, ElementsAre(1, 3));
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(.4f), FloatEq(.3f)));
  config.normalize_weights = true;
  choice = Choose(config, logits);
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(4.0f / 7), FloatEq(3.0f / 7)));
}

TEST(ReferenceGateTest, TakesTheSoftmaxOverTheChosenWhereTheChoiceIsByLogit) {
  GateConfig config;
  config.num_experts = 4;
  config.top_k = 2;
  config.score_function = ScoreFunction::kSoftmaxOfChosen;
  const Choice choice = Choose(config, {std::log(1.0f), std::log(4.0f), std::log(2.0f), -500.0f});
  EXPECT_THAT(choice.experts, ElementsAre(1, 2));
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(2.0f / 3), FloatEq(1.0f / 3)));
}

TEST(ReferenceGateTest, TakesTheSigmoidOfTheBestLogit) {
  GateConfig config;
  config.num_experts = 4;
  config.top_k = 1;
  config.score_function = ScoreFunction::kSigmoidOfChosen;
  const Choice choice = Choose(config, {std::log(1.0f), std::log(4.0f), -3, -500.0f});
  EXPECT_THAT(choice.experts, ElementsAre(1));
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(0.8f)));
  EXPECT_THAT(Choose(config, {20, 25, 0, 0}).experts, ElementsAre(1)) << "both sigmoids are 1";
}

}  // namespace
}  // namespace moebius
