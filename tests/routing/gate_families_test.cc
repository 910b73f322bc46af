// SPDX-License-Identifier: Apache-2.0
// What the gates of the families choose and weigh, written out: three rows, eight experts. Weights
// by the definitions in double precision.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/kernels/gate_logits.h"
#include "moebius/routing/gate.h"
#include "moebius/routing/gate_sides.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::FloatNear;

const std::vector<float> kLogits = {1, -0.5f, 2,  0.25f, -1, 1.5f,  0.75f, -2,  //
                                    0, 0,     0,  0,     0,  0,     0,     0,   //
                                    3, 2.5f,  -3, -3,    1,  1.25f, 2,     2.25f};
// For the choice alone.
const std::vector<float> kBias = {0, 0.3f, -0.4f, 0, 0.2f, 0, -0.1f, 0.5f};
// Part of the logits.
const std::vector<float> kLogitBias = {0.5f, 0, -0.75f, 0, 0, 0.25f, 0, 4};

struct Row {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
struct Family {
  std::string name;
  GateConfig config;
  std::vector<Row> rows;
};

GateConfig Gate(ScoreFunction function, int32_t top_k, bool normalize) {
  GateConfig config;
  config.num_experts = 8;
  config.top_k = top_k;
  config.score_function = function;
  config.normalize_weights = normalize;
  return config;
}

GateConfig Glm() {
  GateConfig config = Gate(ScoreFunction::kSigmoid, 3, true);
  config.has_correction_bias = true;
  return config;
}

GateConfig KimiK2() {
  GateConfig config = Glm();
  config.routed_scaling_factor = 2.5f;
  return config;
}

GateConfig DeepSeek() {
  GateConfig config = KimiK2();
  config.num_groups = 4;
  config.num_kept_groups = 2;
  return config;
}

GateConfig Qwen2() {
  GateConfig config = Gate(ScoreFunction::kSoftmax, 3, false);
  config.shared_weight = SharedWeight::kSigmoidGate;
  return config;
}

GateConfig GptOss() {
  GateConfig config = Gate(ScoreFunction::kSoftmaxOfChosen, 3, false);
  config.has_logit_bias = true;
  return config;
}

GateConfig Llama4() {
  GateConfig config = Gate(ScoreFunction::kSigmoidOfChosen, 1, false);
  config.weighted_side = WeightedSide::kInput;
  return config;
}

std::vector<Family> Families() {
  return {{"deepseek_v3: groups, bias for the choice, weights x 2.5",
           DeepSeek(),
           {{{5, 0, 1}, {1.061138f, 0.948848f, 0.490014f}},
            {{7, 1, 0}, {0.833333f, 0.833333f, 0.833333f}},
            {{7, 1, 0}, {0.813135f, 0.830654f, 0.856211f}}}},
          {"kimi_k2: one group, weights x 2.5",
           KimiK2(),
           {{{5, 0, 1}, {1.061138f, 0.948848f, 0.490014f}},
            {{7, 1, 4}, {0.833333f, 0.833333f, 0.833333f}},
            {{7, 1, 0}, {0.813135f, 0.830654f, 0.856211f}}}},
          {"glm4_moe: the same, weights x 1",
           Glm(),
           {{{5, 0, 1}, {0.424455f, 0.379539f, 0.196006f}},
            {{7, 1, 4}, {0.333333f, 0.333333f, 0.333333f}},
            {{7, 1, 0}, {0.325254f, 0.332262f, 0.342484f}}}},
          {"mixtral: softmax over all, renormalised",
           Gate(ScoreFunction::kSoftmax, 2, true),
           {{{2, 5}, {0.622459f, 0.377541f}},
            {{0, 1}, {0.5f, 0.5f}},
            {{0, 1}, {0.622459f, 0.377541f}}}},
          {"qwen3_moe with norm_topk_prob",
           Gate(ScoreFunction::kSoftmax, 3, true),
           {{{2, 5, 0}, {0.506480f, 0.307196f, 0.186324f}},
            {{0, 1, 2}, {0.333333f, 0.333333f, 0.333333f}},
            {{0, 1, 7}, {0.481024f, 0.291756f, 0.227220f}}}},
          {"qwen2_moe: not renormalised",
           Qwen2(),
           {{{2, 5, 0}, {0.386866f, 0.234646f, 0.142320f}},
            {{0, 1, 2}, {0.125f, 0.125f, 0.125f}},
            {{0, 1, 7}, {0.362208f, 0.219690f, 0.171095f}}}},
          {"olmoe: not renormalised",
           Gate(ScoreFunction::kSoftmax, 3, false),
           {{{2, 5, 0}, {0.386866f, 0.234646f, 0.142320f}},
            {{0, 1, 2}, {0.125f, 0.125f, 0.125f}},
            {{0, 1, 7}, {0.362208f, 0.219690f, 0.171095f}}}},
          // Logits with the bias: 1.5 -0.5 1.25 0.25 -1 1.75 0.75 2 | 0.5 0 -0.75 0 0 0.25 0 4 |
          // 3.5 2.5 -3.75 -3 1 1.5 2 6.25
          {"gpt_oss: bias in the logits, softmax over the chosen alone",
           GptOss(),
           {{{7, 5, 0}, {0.419229f, 0.326496f, 0.254275f}},
            {{7, 0, 5}, {0.949023f, 0.028658f, 0.022319f}},
            {{7, 0, 1}, {0.919586f, 0.058787f, 0.021627f}}}},
          {"llama4: the best by logit, its sigmoid",
           Llama4(),
           {{{2}, {0.880797f}}, {{0}, {0.5f}}, {{0}, {0.952574f}}}}};
}

TEST(GateFamiliesTest, ChooseAndWeighAsWritten) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    ASSERT_TRUE(ValidateGate(family.config).ok());
    std::vector<float> logits = kLogits;
    if (family.config.has_logit_bias) {
      AddLogitBias(kLogitBias, MutableFloatRows(logits.data(), 3, 8));
    }
    const FloatRows rows(logits.data(), 3, 8);
    const std::vector<float> bias =
        family.config.has_correction_bias ? kBias : std::vector<float>();
    Assignments assignments;
    GateCounts counts;
    SelectExperts(family.config, GroupFill::kNegativeInfinity, rows, bias, &assignments, &counts);
    for (size_t row = 0; row < family.rows.size(); ++row) {
      SCOPED_TRACE(row);
      const Row& expected = family.rows[row];
      EXPECT_THAT(assignments.RowIds(static_cast<int64_t>(row)), ElementsAreArray(expected.ids));
      std::vector<testing::Matcher<float>> weights;
      for (const float weight : expected.weights) weights.push_back(FloatNear(weight, 2e-6f));
      EXPECT_THAT(assignments.RowWeights(static_cast<int64_t>(row)), ElementsAreArray(weights));
    }
    const absl::Status valid =
        ValidateAssignments(family.config, GroupFill::kNegativeInfinity, rows, bias, assignments);
    EXPECT_TRUE(valid.ok()) << valid;
  }
}

TEST(GateFamiliesTest, AChoiceByLogitTellsExpertsApartWhoseSigmoidsAreBothOne) {
  const std::vector<float> logits = {20, 25, 0, 0, 0, 0, 0, 0};
  const auto chosen = [&](const GateConfig& config) {
    Assignments assignments;
    GateCounts counts;
    SelectExperts(config, GroupFill::kNegativeInfinity, FloatRows(logits.data(), 1, 8), {},
                  &assignments, &counts);
    EXPECT_EQ(assignments.weights[0], 1.0f);
    return assignments.expert_ids[0];
  };
  EXPECT_EQ(chosen(Llama4()), 1);
  EXPECT_EQ(chosen(Gate(ScoreFunction::kSigmoid, 1, false)), 0) << "equal scores, the lowest id";
}

TEST(GateFamiliesTest, ASoftmaxOverTheChosenNeedsNoScoreAboveZero) {
  const float lowest = std::numeric_limits<float>::lowest();
  const std::vector<float> logits = {lowest, lowest, lowest, lowest, lowest, lowest, -200, lowest};
  Assignments assignments;
  GateCounts counts;
  SelectExperts(GptOss(), GroupFill::kNegativeInfinity, FloatRows(logits.data(), 1, 8), {},
                &assignments, &counts);
  EXPECT_THAT(assignments.expert_ids, ElementsAre(6, 0, 1));
  EXPECT_THAT(assignments.weights, ElementsAre(1.0f, 0.0f, 0.0f));
}

// Only llama4 weighs what an expert is given: Σ E(w·x), where all others have Σ w·E(x).
TEST(GateFamiliesTest, OnlyLlama4WeighsTheInputOfAnExpert) {
  for (const Family& family : Families()) {
    const bool is_input = family.config.weighted_side == WeightedSide::kInput;
    EXPECT_EQ(is_input, family.name.rfind("llama4", 0) == 0) << family.name;
    EXPECT_EQ(UseWeight(family.config, 0.25f),
              (is_input ? WeightUse{0.25f, 1} : WeightUse{1, 0.25f}))
        << family.name;
  }
}

TEST(GateFamiliesTest, AWeightedInputIsRoundedOnce) {
  const std::vector<Bf16> row = {ToBf16(1), ToBf16(-2), ToBf16(0.5f), ToBf16(3)};
  std::vector<Bf16> out(4);
  const auto values = [&out] {
    std::vector<float> widened;
    for (const Bf16 value : out) widened.push_back(ToFloat(value));
    return widened;
  };
  // 0.880797 · x is 0.880797, -1.761594, 0.440399 and 2.642391; bf16 has eight bits of them.
  WeighRow(0.880797f, row, absl::MakeSpan(out));
  EXPECT_THAT(values(), ElementsAre(0.87890625f, -1.7578125f, 0.439453125f, 2.640625f));
  WeighRow(1, row, absl::MakeSpan(out));
  EXPECT_THAT(values(), ElementsAre(1, -2, 0.5f, 3));
  WeighRow(0, row, absl::MakeSpan(out));
  EXPECT_THAT(values(), ElementsAre(0, 0, 0, 0));
}

// qwen2_moe: the shared experts' sum is multiplied by sigmoid(row · shared gate).
TEST(GateFamiliesTest, ASharedGateWeighsEachRowBySigmoidOfItsProduct) {
  const std::vector<float> rows = {1, 2,  -1, 0.5f,  // 0.5 + 0.5 - 1 + 1 = 1
                                   0, 0,  0,  0,     //
                                   4, -8, 0,  -1};   // 2 - 2 - 2 = -2
  const std::vector<float> gate = {0.5f, 0.25f, 1, 2};
  const auto narrow = [](const std::vector<float>& values) {
    RowBatch<Bf16> batch(static_cast<int64_t>(values.size()) / 4, 4);
    for (size_t i = 0; i < values.size(); ++i) {
      batch.rows().row(static_cast<int64_t>(i / 4))[i % 4] = ToBf16(values[i]);
    }
    return batch;
  };
  const Kernels& kernels = BestKernels();
  const GateMatrix matrix = GateMatrix::Pack(Bf16Rows(narrow(gate).rows()), kernels.pair_order);
  const RowBatch<Bf16> input = narrow(rows);
  RowBatch<float> logits(3, 1);
  Executor executor(1);
  executor.Run([&] { GateLogits(executor, kernels, input.rows(), matrix, logits.rows()); });
  std::vector<float> weights(3);
  std::vector<int64_t> refused;
  WeighSharedExperts(Qwen2(), logits.rows(), absl::MakeSpan(weights), &refused);
  EXPECT_THAT(weights, ElementsAre(FloatNear(0.731059f, 1e-6f), FloatNear(0.5f, 1e-6f),
                                   FloatNear(0.119203f, 1e-6f)));
  EXPECT_THAT(refused, testing::IsEmpty());

  *logits.rows().row(1) = std::numeric_limits<float>::quiet_NaN();
  const float first = weights[0];
  WeighSharedExperts(Qwen2(), logits.rows(), absl::MakeSpan(weights), &refused);
  EXPECT_THAT(refused, ElementsAre(1));
  EXPECT_EQ(weights[1], 0);
  EXPECT_EQ(weights[0], first);

  WeighSharedExperts(DeepSeek(), FloatRows(), absl::MakeSpan(weights), &refused);
  EXPECT_THAT(weights, ElementsAre(1, 1, 1)) << "elsewhere they weigh 1";
}

}  // namespace
}  // namespace moebius
