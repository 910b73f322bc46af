// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/gate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/kernels/math.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

GateConfig Softmax(int32_t num_experts, int32_t top_k) {
  GateConfig config;
  config.num_experts = num_experts;
  config.top_k = top_k;
  return config;
}

GateConfig SigmoidGate(int32_t num_experts, int32_t top_k, int32_t groups, int32_t kept) {
  GateConfig config = Softmax(num_experts, top_k);
  config.score_function = ScoreFunction::kSigmoid;
  config.num_groups = groups;
  config.num_kept_groups = kept;
  config.normalize_weights = true;
  return config;
}

struct Chosen {
  Assignments assignments;
  GateCounts counts;
  std::vector<int32_t> ids(int64_t row = 0) const {
    const auto span = assignments.RowIds(row);
    return {span.begin(), span.end()};
  }
  std::vector<float> weights(int64_t row = 0) const {
    const auto span = assignments.RowWeights(row);
    return {span.begin(), span.end()};
  }
};

Chosen Select(const GateConfig& config, std::vector<float> logits, std::vector<float> bias = {},
              GroupFill fill = GroupFill::kNegativeInfinity) {
  EXPECT_TRUE(ValidateGate(config).ok());
  Chosen chosen;
  const auto rows = static_cast<int64_t>(logits.size()) / config.num_experts;
  SelectExperts(config, fill, FloatRows(logits.data(), rows, config.num_experts), bias,
                &chosen.assignments, &chosen.counts);
  return chosen;
}

// The logit whose sigmoid is p.
float Logit(double p) { return static_cast<float>(std::log(p / (1 - p))); }

TEST(GateTest, SoftmaxIsTakenOverAllExpertsBeforeTheChoice) {
  // e^0, e^1, e^2, e^3 over their sum 31.193.
  const Chosen chosen = Select(Softmax(4, 2), {0, 1, 2, 3});
  EXPECT_THAT(chosen.ids(), ElementsAre(3, 2));
  EXPECT_THAT(chosen.weights(),
              ElementsAre(FloatNear(0.643914f, 1e-6f), FloatNear(0.236883f, 1e-6f)));
}

TEST(GateTest, NormalisedWeightsSumToTheScalingFactor) {
  GateConfig config = Softmax(4, 2);
  config.normalize_weights = true;
  config.routed_scaling_factor = 2.5f;
  const Chosen chosen = Select(config, {0, 1, 2, 3});
  EXPECT_THAT(chosen.weights(),
              ElementsAre(FloatNear(2.5f * 0.731059f, 3e-6f), FloatNear(2.5f * 0.268941f, 3e-6f)));
}

TEST(GateTest, BiasDecidesTheChoiceAndNeverEntersAWeight) {
  GateConfig config = SigmoidGate(4, 2, 1, 1);
  config.has_correction_bias = true;
  // Scores 0.9 0.8 0.2 0.1; with the bias 0.9 0.3 0.2 1.1.
  const Chosen chosen =
      Select(config, {Logit(0.9), Logit(0.8), Logit(0.2), Logit(0.1)}, {0, -0.5f, 0, 1});
  EXPECT_THAT(chosen.ids(), ElementsAre(3, 0));
  EXPECT_THAT(chosen.weights(), ElementsAre(FloatNear(0.1f, 1e-6f), FloatNear(0.9f, 1e-6f)));
}

TEST(GateTest, KeepsTheGroupsWithTheBestTwoExperts) {
  // Groups {0.9 0.1} {0.6 0.6} {0.5 0.1} {0.7 0.4}: sums 1.0, 1.2, 0.6, 1.1. Expert 0, the best of
  // all, is in no kept group.
  std::vector<float> logits;
  for (const double p : {0.9, 0.1, 0.6, 0.6, 0.5, 0.1, 0.7, 0.4}) logits.push_back(Logit(p));
  EXPECT_THAT(Select(SigmoidGate(8, 3, 4, 2), logits).ids(), ElementsAre(6, 2, 3));
  EXPECT_THAT(Select(SigmoidGate(8, 3, 1, 1), logits).ids(), ElementsAre(0, 6, 2));
}

TEST(GateTest, GroupsOfOneExpertAreScoredByIt) {
  EXPECT_THAT(Select(SigmoidGate(4, 2, 4, 2), {1, 3, 2, 0}).ids(), ElementsAre(1, 2));
}

TEST(GateTest, ZeroFillCanLeaveTheKeptGroupsAndIsCounted) {
  GateConfig config = SigmoidGate(4, 2, 2, 1);
  config.has_correction_bias = true;
  const std::vector<float> logits(4, 0.0f);  // all scores 0.5
  // Selection 0.6, -0.1 | 0.1, 0.1: sums 0.5 and 0.2, the first group is kept.
  const std::vector<float> bias = {0.1f, -0.6f, -0.4f, -0.4f};
  const Chosen strict = Select(config, logits, bias);
  EXPECT_THAT(strict.ids(), ElementsAre(0, 1));
  EXPECT_EQ(strict.counts.group_fill_mismatches, 1);
  const Chosen filled = Select(config, logits, bias, GroupFill::kZero);
  EXPECT_THAT(filled.ids(), ElementsAre(0, 2));
  EXPECT_EQ(filled.counts.group_fill_mismatches, 1);
  // Without negative selection scores the two agree.
  const Chosen agreeing = Select(config, logits, {0.1f, -0.4f, -0.4f, -0.4f}, GroupFill::kZero);
  EXPECT_THAT(agreeing.ids(), ElementsAre(0, 1));
  EXPECT_EQ(agreeing.counts.group_fill_mismatches, 0);
}

TEST(GateTest, ASelectionScoreOfExactlyZeroTiesWithTheFillByTheLowestId) {
  GateConfig config = SigmoidGate(4, 2, 2, 1);
  config.has_correction_bias = true;
  // Selection 0, 0 | 0.6, 0: the second group is kept; under zero fill experts 0, 1, 3 tie at 0.
  const std::vector<float> bias = {-0.5f, -0.5f, 0.1f, -0.5f};
  EXPECT_THAT(Select(config, {0, 0, 0, 0}, bias).ids(), ElementsAre(2, 3));
  const Chosen filled = Select(config, {0, 0, 0, 0}, bias, GroupFill::kZero);
  EXPECT_THAT(filled.ids(), ElementsAre(2, 0));
  EXPECT_EQ(filled.counts.group_fill_mismatches, 1);
}

TEST(GateTest, TiesBreakByTheLowestIdInExpertsAndGroups) {
  EXPECT_THAT(Select(Softmax(6, 4), std::vector<float>(6, 1.5f)).ids(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Select(SigmoidGate(8, 2, 4, 2), std::vector<float>(8, 0.0f)).ids(),
              ElementsAre(0, 1));
  EXPECT_THAT(Select(Softmax(5, 3), {0, 2, 1, 2, 2}).ids(), ElementsAre(1, 3, 4));
}

TEST(GateTest, ScoresThatAllUnderflowGiveZeroWeights) {
  const Chosen chosen = Select(SigmoidGate(4, 2, 1, 1), {-200, -200, -300, -200});
  EXPECT_THAT(chosen.ids(), ElementsAre(0, 1));
  EXPECT_THAT(chosen.weights(), ElementsAre(0.0f, 0.0f));
}

TEST(GateTest, ABiasThatChoosesScoresThatUnderflowGivesZeroWeightsToo) {
  // A softmax of 200 and 0s is 1 and 0s; the bias chooses two of the latter.
  GateConfig config = Softmax(4, 2);
  config.normalize_weights = true;
  const Chosen chosen = Select(config, {200, 0, 0, 0}, {-2, 0, 0.5f, 0.5f});
  EXPECT_THAT(chosen.ids(), ElementsAre(2, 3));
  EXPECT_THAT(chosen.weights(), ElementsAre(0.0f, 0.0f));
}

TEST(GateTest, SoftmaxSurvivesTheLargestLogits) {
  const float largest = std::numeric_limits<float>::max();
  const Chosen chosen = Select(Softmax(3, 2), {-largest, largest, 0});
  EXPECT_THAT(chosen.ids(), ElementsAre(1, 0));
  EXPECT_THAT(chosen.weights(), ElementsAre(1.0f, 0.0f));
}

TEST(GateTest, RefusesRowsThatAreNotFiniteAndLeavesTheOthersAlone) {
  const std::vector<float> good = {0, 1, 2, 3};
  const Chosen alone = Select(Softmax(4, 2), good);
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<float> logits = {9, bad, 1, 1};
    logits.insert(logits.end(), good.begin(), good.end());
    logits.insert(logits.end(), {1, 1, 1, bad});
    const Chosen chosen = Select(Softmax(4, 2), logits);
    EXPECT_THAT(chosen.assignments.refused_rows, ElementsAre(0, 2));
    EXPECT_EQ(chosen.counts.refused_rows, 2);
    EXPECT_THAT(chosen.ids(0), ElementsAre(kNoExpert, kNoExpert));
    EXPECT_THAT(chosen.weights(2), ElementsAre(0.0f, 0.0f));
    EXPECT_EQ(chosen.ids(1), alone.ids());
    EXPECT_EQ(chosen.weights(1), alone.weights());
  }
}

TEST(GateTest, ZeroRowsAreOrdinary) {
  const Chosen chosen = Select(Softmax(4, 2), {});
  EXPECT_EQ(chosen.assignments.num_rows, 0);
  EXPECT_TRUE(chosen.assignments.expert_ids.empty());
}

TEST(GateTest, ValidateNamesTheFieldThatCannotBe) {
  const auto message = [](const GateConfig& config) {
    return std::string(ValidateGate(config).message());
  };
  EXPECT_THAT(message(Softmax(0, 1)), HasSubstr("num_experts is 0"));
  EXPECT_THAT(message(Softmax(1025, 1)), HasSubstr("num_experts is 1025"));
  EXPECT_THAT(message(Softmax(64, 17)), HasSubstr("top_k is 17"));
  EXPECT_THAT(message(Softmax(4, 5)), HasSubstr("top_k is 5; it must be at most 4"));
  EXPECT_THAT(message(SigmoidGate(16, 5, 4, 1)), HasSubstr("at most 4, the experts of the kept"));
  EXPECT_THAT(message(SigmoidGate(10, 2, 4, 1)), HasSubstr("num_groups is 4"));
  EXPECT_THAT(message(SigmoidGate(8, 2, 4, 5)), HasSubstr("num_kept_groups is 5"));
}

TEST(GateTest, ValidateNamesTheRuleThatAChoiceBreaks) {
  GateConfig config = SigmoidGate(8, 2, 4, 2);
  std::vector<float> logits;
  for (const double p : {0.9, 0.1, 0.6, 0.6, 0.5, 0.1, 0.7, 0.4}) logits.push_back(Logit(p));
  logits.insert(logits.end(), 8, kNan);
  const FloatRows rows(logits.data(), 2, 8);
  const Assignments good = Select(config, logits).assignments;
  EXPECT_THAT(good.RowIds(0), ElementsAre(6, 2));
  const auto broken = [&](auto change) {
    Assignments assignments = good;
    change(assignments);
    return std::string(
        ValidateAssignments(config, GroupFill::kNegativeInfinity, rows, {}, assignments).message());
  };
  EXPECT_EQ(broken([](Assignments&) {}), "");
  EXPECT_THAT(broken([](Assignments& a) { a.refused_rows.clear(); }), HasSubstr("G1: row 1"));
  EXPECT_THAT(broken([](Assignments& a) { a.refused_rows = {0, 1}; }), HasSubstr("G1: row 0"));
  EXPECT_THAT(broken([](Assignments& a) { a.refused_rows = {1, 0}; }), HasSubstr("G1"));
  EXPECT_THAT(broken([](Assignments& a) { a.expert_ids[2] = 0; }), HasSubstr("G1: row 1"));
  EXPECT_THAT(broken([](Assignments& a) { a.expert_ids[0] = 8; }), HasSubstr("G2: row 0"));
  EXPECT_THAT(broken([](Assignments& a) { a.expert_ids[1] = 6; }), HasSubstr("G2"));
  EXPECT_THAT(broken([](Assignments& a) { a.expert_ids[0] = 0; }),
              HasSubstr("G3: row 0 has expert 0 of group 0, which is not kept"));
  EXPECT_THAT(broken([](Assignments& a) { a.expert_ids[1] = 3; }),
              HasSubstr("G4: row 0 leaves out expert 2, better than 3"));
  EXPECT_THAT(broken([](Assignments& a) { std::swap(a.expert_ids[0], a.expert_ids[1]); }),
              HasSubstr("G4: row 0 has expert 2 before 6"));
  EXPECT_THAT(broken([](Assignments& a) { a.weights[1] *= 1.001f; }), HasSubstr("G5"));
  EXPECT_THAT(broken([](Assignments& a) { a.weights[0] = kNan; }), HasSubstr("G5"));
}

// A statement of the choice that shares nothing with the code under test but the scores.
std::vector<int32_t> ChooseSlowly(const GateConfig& config, GroupFill fill,
                                  std::vector<float> selection) {
  const auto better = [&](const std::vector<float>& values) {
    return [&values](int32_t a, int32_t b) {
      return values[a] > values[b] || (values[a] == values[b] && a < b);
    };
  };
  const int32_t width = config.num_experts / config.num_groups;
  std::vector<float> group_scores;
  std::vector<int32_t> groups;
  for (int32_t g = 0; g < config.num_groups; ++g) {
    std::vector<float> members(selection.begin() + g * width, selection.begin() + (g + 1) * width);
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(width == 1 ? members[0] : members[0] + members[1]);
    groups.push_back(g);
  }
  std::sort(groups.begin(), groups.end(), better(group_scores));
  for (size_t i = static_cast<size_t>(config.num_kept_groups); i < groups.size(); ++i) {
    for (int32_t e = groups[i] * width; e < (groups[i] + 1) * width; ++e) {
      selection[e] = fill == GroupFill::kZero ? 0.0f : -kInfinity;
    }
  }
  std::vector<int32_t> ids(static_cast<size_t>(config.num_experts));
  for (int32_t e = 0; e < config.num_experts; ++e) ids[e] = e;
  std::sort(ids.begin(), ids.end(), better(selection));
  ids.resize(static_cast<size_t>(config.top_k));
  return ids;
}

TEST(GatePropertyTest, ChoosesAsASlowStatementDoes) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  const int32_t expert_counts[] = {1, 2, 8, 31, 64, 160, 256, 384, 896, 1024};
  for (int trial = 0; trial < 300; ++trial) {
    GateConfig config;
    config.num_experts = expert_counts[random.Below(std::size(expert_counts))];
    std::vector<int32_t> divisors;
    for (int32_t g = 1; g <= std::min(config.num_experts, 64); ++g) {
      if (config.num_experts % g == 0) divisors.push_back(g);
    }
    config.num_groups = divisors[random.Below(divisors.size())];
    config.num_kept_groups = 1 + static_cast<int32_t>(random.Below(config.num_groups));
    const int32_t candidates = config.num_experts / config.num_groups * config.num_kept_groups;
    config.top_k = 1 + static_cast<int32_t>(random.Below(std::min(candidates, kMaxTopK)));
    config.score_function = static_cast<ScoreFunction>(random.Below(4));
    config.normalize_weights = random.Below(2) == 0;
    const GroupFill fill = random.Below(2) == 0 ? GroupFill::kZero : GroupFill::kNegativeInfinity;
    SCOPED_TRACE(testing::Message()
                 << "trial " << trial << " E " << config.num_experts << " k " << config.top_k
                 << " groups " << config.num_kept_groups << "/" << config.num_groups);
    // Coarse values make many ties; wide ones reach both ends of the exponential.
    const bool coarse = random.Below(2) == 0;
    std::vector<float> logits, bias;
    const int64_t rows = static_cast<int64_t>(random.Below(4));
    for (int64_t i = 0; i < rows * config.num_experts; ++i) {
      logits.push_back(coarse ? static_cast<float>(random.Below(9)) * 0.5f - 2
                              : random.Normal() * 40);
    }
    if (random.Below(2) == 0) {
      for (int32_t e = 0; e < config.num_experts; ++e) {
        bias.push_back(static_cast<float>(random.Below(5)) * 0.5f - 1.5f);
      }
    }
    const Chosen chosen = Select(config, logits, bias, fill);
    for (int64_t row = 0; row < rows; ++row) {
      // Scores by the definition: same functions, same fixed order.
      std::vector<float> scores(static_cast<size_t>(config.num_experts));
      const float* const row_logits = logits.data() + row * config.num_experts;
      if (config.score_function == ScoreFunction::kSigmoid) {
        for (size_t e = 0; e < scores.size(); ++e) scores[e] = Sigmoid(row_logits[e]);
      } else if (config.score_function != ScoreFunction::kSoftmax) {
        scores.assign(row_logits, row_logits + config.num_experts);
      } else {
        const float largest = *std::max_element(row_logits, row_logits + config.num_experts);
        float chains[8] = {};
        for (size_t e = 0; e < scores.size(); ++e) {
          scores[e] = Exp(row_logits[e] - largest);
          chains[e % 8] += scores[e];
        }
        const float sum = ((chains[0] + chains[4]) + (chains[2] + chains[6])) +
                          ((chains[1] + chains[5]) + (chains[3] + chains[7]));
        for (float& score : scores) score /= sum;
      }
      std::vector<float> selection = scores;
      for (size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
      const std::vector<int32_t> expected = ChooseSlowly(config, fill, selection);
      ASSERT_EQ(chosen.ids(row), expected);
      bool is_divided = config.normalize_weights;
      if (config.score_function == ScoreFunction::kSigmoidOfChosen) {
        for (const int32_t id : expected) scores[id] = Sigmoid(scores[id]);
      } else if (config.score_function == ScoreFunction::kSoftmaxOfChosen) {
        float largest = -kInfinity;
        for (const int32_t id : expected) largest = std::max(largest, scores[id]);
        for (const int32_t id : expected) scores[id] = Exp(scores[id] - largest);
        is_divided = true;
      }
      float divisor = 1;
      if (is_divided) {
        divisor = 0;
        for (const int32_t id : expected) divisor += scores[id];
        divisor += 1e-20f;
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(chosen.weights(row)[i], scores[expected[i]] / divisor);
      }
    }
  }
}

TEST(GatePropertyTest, ThreadsAndOtherRowsChangeNothing) {
  const uint64_t seed = 7;
  Random random(seed);
  GateConfig config = SigmoidGate(256, 8, 8, 4);
  const int64_t rows = 133;
  RowBatch<float> logits(rows, config.num_experts);
  for (int64_t row = 0; row < rows; ++row) {
    for (float& logit : logits.rows().span(row)) logit = random.Normal();
  }
  logits.rows().row(57)[200] = kNan;
  Assignments serial;
  GateCounts serial_counts;
  SelectExperts(config, GroupFill::kNegativeInfinity, logits.rows(), {}, &serial, &serial_counts);
  EXPECT_THAT(serial.refused_rows, ElementsAre(57));
  for (const int threads : {1, 2, 3}) {
    Executor executor(threads);
    Assignments parallel;
    GateCounts counts;
    executor.Run([&] {
      SelectExperts(executor, config, GroupFill::kNegativeInfinity, logits.rows(), {}, &parallel,
                    &counts);
    });
    EXPECT_EQ(parallel.expert_ids, serial.expert_ids);
    EXPECT_EQ(parallel.weights, serial.weights);
    EXPECT_EQ(parallel.refused_rows, serial.refused_rows);
    EXPECT_EQ(counts.refused_rows, 1);
  }
  for (const int64_t row : {0, 56, 58, 132}) {
    Assignments alone;
    GateCounts counts;
    const MutableFloatRows one = logits.rows().Slice(row, row + 1);
    SelectExperts(config, GroupFill::kNegativeInfinity, one, {}, &alone, &counts);
    EXPECT_EQ(alone.RowIds(0), serial.RowIds(row));
    EXPECT_EQ(alone.RowWeights(0), serial.RowWeights(row));
  }
}

}  // namespace
}  // namespace moebius
