// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/model/checkpoint.h"

namespace moebius {
namespace {

class GoldenConfigTest : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const {
    return absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/", GetParam());
  }
};

TEST_P(GoldenConfigTest, BothFormsOfTheConfigurationAreTheSameModel) {
  const auto older = ReadFolderConfig(folder());
  const auto newer = ReadFolderConfig(folder(), folder() + "/config.v5.json");
  ASSERT_TRUE(older.ok()) << older.status();
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(CanonicalConfigText(older->model), CanonicalConfigText(newer->model));
  EXPECT_EQ(older->model.attention.softmax_scale, newer->model.attention.softmax_scale);
  EXPECT_EQ(older->model.moe_layers, newer->model.moe_layers);
}

TEST_P(GoldenConfigTest, EveryParameterIsFilledAndEveryTensorRead) {
  CheckpointOptions newer;
  newer.config_file = folder() + "/config.v5.json";
  const auto checkpoint = Checkpoint::Open(folder());
  const auto other = Checkpoint::Open(folder(), newer);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*checkpoint)->match().num_ignored, 0);
  EXPECT_EQ((*checkpoint)->match().parameters.size(), (*checkpoint)->directory().entries().size());
  EXPECT_EQ((*checkpoint)->model_hash(), (*other)->model_hash());
  EXPECT_EQ((*checkpoint)->config_hash(), (*other)->config_hash());
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, GoldenConfigTest,
                         testing::Values("deepseek_v3", "deepseek_v3_long",
                                         "deepseek_v3_negative_bias", "deepseek_v3_noqlora_yarn",
                                         "glm4_moe", "mixtral", "olmoe", "qwen3_moe",
                                         "qwen3_moe_long", "qwen3_moe_tied"),
                         [](const auto& info) { return std::string(info.param); });

ModelConfig Golden(const std::string& name) {
  const auto config =
      ReadFolderConfig(absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/", name));
  EXPECT_TRUE(config.ok()) << config.status();
  return config->model;
}

TEST(FamilyFactsTest, DeepseekV3) {
  const ModelConfig config = Golden("deepseek_v3");
  EXPECT_EQ(config.moe_layers, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(config.gate.num_groups, 4);
  EXPECT_EQ(config.gate.num_kept_groups, 2);
  EXPECT_EQ(config.gate.score_function, ScoreFunction::kSigmoid);
  EXPECT_TRUE(config.gate.has_correction_bias);
  EXPECT_TRUE(config.gate.normalize_weights);
  EXPECT_EQ(config.gate.routed_scaling_factor, 2.5f);
  EXPECT_EQ(config.num_shared_experts, 1);
  EXPECT_EQ(config.attention.rope.dim, 8);
  EXPECT_EQ(config.attention.rope.pairing, RopePairing::kInterleaved);
  ASSERT_TRUE(config.attention.mla.has_value());
  EXPECT_EQ(config.attention.mla->q_lora_rank, 24);
  EXPECT_EQ(config.attention.mla->lora_norm_eps, 1e-6);
  EXPECT_EQ(config.attention.softmax_scale, static_cast<float>(1.0 / std::sqrt(24.0)));
  EXPECT_EQ(config.NumDenseSlices(), 2);
  EXPECT_EQ(config.eos_source, "config.json");
}

TEST(FamilyFactsTest, DeepseekV3WithYarnStretchesScaleAndAmplitude) {
  const ModelConfig config = Golden("deepseek_v3_long");
  ASSERT_TRUE(config.attention.rope.yarn.has_value());
  EXPECT_EQ(config.attention.rope.yarn->original_max_positions, 1024);
  const double ln8 = 2.0794415416798357;
  const double all = 0.1 * 0.8 * ln8 + 1;
  EXPECT_FLOAT_EQ(config.attention.softmax_scale, static_cast<float>(all * all / std::sqrt(24.0)));
  EXPECT_FLOAT_EQ(config.attention.rope_amplitude, static_cast<float>((0.1 * ln8 + 1) / all));
  EXPECT_EQ(Golden("deepseek_v3_noqlora_yarn").attention.mla->q_lora_rank, 0);
  EXPECT_EQ(Golden("deepseek_v3_noqlora_yarn").num_shared_experts, 2);
}

TEST(FamilyFactsTest, Qwen3Moe) {
  const ModelConfig config = Golden("qwen3_moe");
  EXPECT_EQ(config.moe_layers, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(config.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(config.attention.num_kv_heads, 2);
  EXPECT_EQ(config.attention.qk_head_dim, 24);
  EXPECT_EQ(config.gate.score_function, ScoreFunction::kSoftmax);
  EXPECT_FALSE(config.gate.has_correction_bias);
  const ModelConfig tied = Golden("qwen3_moe_tied");
  EXPECT_TRUE(tied.tied_head);
  EXPECT_FALSE(tied.gate.normalize_weights);
  EXPECT_EQ(tied.moe_layers, (std::vector<bool>{false, true}));
}

TEST(FamilyFactsTest, OlmoeMixtralAndGlm) {
  const ModelConfig olmoe = Golden("olmoe");
  EXPECT_EQ(olmoe.attention.qk_norm, QkNorm::kWholeProjection);
  EXPECT_EQ(olmoe.attention.qk_norm_eps, 1e-5);
  EXPECT_FALSE(olmoe.gate.normalize_weights);
  const ModelConfig mixtral = Golden("mixtral");
  EXPECT_EQ(mixtral.attention.qk_norm, QkNorm::kNone);
  EXPECT_TRUE(mixtral.gate.normalize_weights);
  EXPECT_EQ(mixtral.moe_intermediate_size, 80);
  EXPECT_EQ(mixtral.dense_intermediate_size, 0);
  const ModelConfig glm = Golden("glm4_moe");
  EXPECT_TRUE(glm.attention.qkv_bias);
  EXPECT_FALSE(glm.attention.output_bias);
  EXPECT_EQ(glm.attention.rope.dim, 8);
  EXPECT_EQ(glm.attention.rope.pairing, RopePairing::kHalves);
  EXPECT_EQ(glm.gate.routed_scaling_factor, 1.5f);
}

}  // namespace
}  // namespace moebius
