// SPDX-License-Identifier: Apache-2.0
// What the gates of the families choose and weigh, written out: three rows, eight experts. Weights
// by the definitions in double precision.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/routing/gate.h"

namespace moebius {
namespace {

using testing::ElementsAreArray;
using testing::FloatNear;

const std::vector<float> kLogits = {1, -0.5f, 2,  0.25f, -1, 1.5f,  0.75f, -2,  //
                                    0, 0,     0,  0,     0,  0,     0,     0,   //
                                    3, 2.5f,  -3, -3,    1,  1.25f, 2,     2.25f};
const std::vector<float> kBias = {0, 0.3f, -0.4f, 0, 0.2f, 0, -0.1f, 0.5f};

struct Row {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
struct Family {
  std::string name;
  GateConfig config;
  bool has_bias;
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

GateConfig DeepSeek() {
  GateConfig config = Gate(ScoreFunction::kSigmoid, 3, true);
  config.has_correction_bias = true;
  config.num_groups = 4;
  config.num_kept_groups = 2;
  config.routed_scaling_factor = 2.5f;
  return config;
}

GateConfig Glm() {
  GateConfig config = Gate(ScoreFunction::kSigmoid, 3, true);
  config.has_correction_bias = true;
  return config;
}

const std::vector<Family>& Families() {
  static const auto* const families =
      new std::vector<Family>{{"deepseek_v3, kimi_k2: groups, bias for the choice, weights x 2.5",
                               DeepSeek(),
                               true,
                               {{{5, 0, 1}, {1.061138f, 0.948848f, 0.490014f}},
                                {{7, 1, 0}, {0.833333f, 0.833333f, 0.833333f}},
                                {{7, 1, 0}, {0.813135f, 0.830654f, 0.856211f}}}},
                              {"glm4_moe: the same without groups",
                               Glm(),
                               true,
                               {{{5, 0, 1}, {0.424455f, 0.379539f, 0.196006f}},
                                {{7, 1, 4}, {0.333333f, 0.333333f, 0.333333f}},
                                {{7, 1, 0}, {0.325254f, 0.332262f, 0.342484f}}}},
                              {"mixtral: softmax over all, renormalised",
                               Gate(ScoreFunction::kSoftmax, 2, true),
                               false,
                               {{{2, 5}, {0.622459f, 0.377541f}},
                                {{0, 1}, {0.5f, 0.5f}},
                                {{0, 1}, {0.622459f, 0.377541f}}}},
                              {"qwen3_moe with norm_topk_prob",
                               Gate(ScoreFunction::kSoftmax, 3, true),
                               false,
                               {{{2, 5, 0}, {0.506480f, 0.307196f, 0.186324f}},
                                {{0, 1, 2}, {0.333333f, 0.333333f, 0.333333f}},
                                {{0, 1, 7}, {0.481024f, 0.291756f, 0.227220f}}}},
                              {"qwen2_moe, olmoe: not renormalised",
                               Gate(ScoreFunction::kSoftmax, 3, false),
                               false,
                               {{{2, 5, 0}, {0.386866f, 0.234646f, 0.142320f}},
                                {{0, 1, 2}, {0.125f, 0.125f, 0.125f}},
                                {{0, 1, 7}, {0.362208f, 0.219690f, 0.171095f}}}}};
  return *families;
}

TEST(GateFamiliesTest, ChooseAndWeighAsWritten) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    ASSERT_TRUE(ValidateGate(family.config).ok());
    Assignments assignments;
    GateCounts counts;
    SelectExperts(family.config, GroupFill::kNegativeInfinity, FloatRows(kLogits.data(), 3, 8),
                  family.has_bias ? kBias : std::vector<float>(), &assignments, &counts);
    for (size_t row = 0; row < family.rows.size(); ++row) {
      SCOPED_TRACE(row);
      const Row& expected = family.rows[row];
      EXPECT_THAT(assignments.RowIds(static_cast<int64_t>(row)), ElementsAreArray(expected.ids));
      std::vector<testing::Matcher<float>> weights;
      for (const float weight : expected.weights) weights.push_back(FloatNear(weight, 2e-6f));
      EXPECT_THAT(assignments.RowWeights(static_cast<int64_t>(row)), ElementsAreArray(weights));
    }
  }
}

}  // namespace
}  // namespace moebius
