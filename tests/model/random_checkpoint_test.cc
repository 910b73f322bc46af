// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/random_checkpoint.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/model/checkpoint.h"
#include "moebius/model/model_shapes.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::HasSubstr;

class RandomCheckpointTest : public testing::TestWithParam<Family> {};

TEST_P(RandomCheckpointTest, OpensWithEveryWeightInPlace) {
  const TemporaryFolder folder;
  RandomCheckpointOptions options;
  options.family = GetParam();
  options.num_layers = 3;
  options.num_shards = 3;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.File("m"), options).ok());
  const auto checkpoint = Checkpoint::Open(folder.File("m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().family, GetParam());
  EXPECT_EQ((*checkpoint)->directory().files().size(), 3u);
  EXPECT_TRUE((*checkpoint)->MakeTokenizer().ok());
  EXPECT_EQ((*checkpoint)->numerics().span, 128);
  for (const Parameter& parameter : (*checkpoint)->match().parameters) {
    EXPECT_TRUE((*checkpoint)->LoadFloat(parameter.key).ok()) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, RandomCheckpointTest,
                         testing::Values(Family::kDeepseekV3, Family::kKimiK2, Family::kGlm4Moe,
                                         Family::kQwen3Moe, Family::kOlmoe, Family::kMixtral),
                         [](const auto& info) { return std::string(FamilyName(info.param)); });

TEST(RandomCheckpointFileTest, DependsOnTheSeedAlone) {
  const TemporaryFolder folder;
  RandomCheckpointOptions options;
  const auto hash_of = [&](const std::string& name) {
    EXPECT_TRUE(WriteRandomCheckpoint(folder.File(name), options).ok());
    return (*Checkpoint::Open(folder.File(name)))->model_hash();
  };
  const uint64_t first = hash_of("a");
  EXPECT_EQ(hash_of("b"), first);
  EXPECT_EQ(ReadFileBytes(folder.File("a/model.safetensors")),
            ReadFileBytes(folder.File("b/model.safetensors")));
  options.num_shards = 4;
  EXPECT_EQ(hash_of("c"), first);
  options.seed = 1;
  EXPECT_NE(hash_of("d"), first);
}

TEST(RandomCheckpointFileTest, ValuesAreNormalScaledAndNeverZero) {
  Parameter parameter;
  parameter.name = "x.weight";
  parameter.shape = {1000, 100};
  std::vector<float> values(100'000);
  FillRandomElements(parameter, DType::kF32, 7, 0, values.size(),
                     absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), 400'000));
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    EXPECT_NE(value, 0.0f);
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.002);
  EXPECT_NEAR(std::sqrt(squares / 1e5), 0.1, 0.002);  // 1 / sqrt(100 inputs)
  // A piece from the middle is the same as in the whole.
  float piece = 0;
  FillRandomElements(parameter, DType::kF32, 7, 54'321, 1,
                     absl::MakeSpan(reinterpret_cast<uint8_t*>(&piece), 4));
  EXPECT_EQ(piece, values[54'321]);
}

TEST(RandomCheckpointFileTest, WritesTheOtherTypes) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const TemporaryFolder folder;
    RandomCheckpointOptions options;
    options.dtype = dtype;
    ASSERT_TRUE(WriteRandomCheckpoint(folder.File("m"), options).ok());
    CheckpointOptions convert;
    convert.convert_to_bf16 = true;
    const auto checkpoint = Checkpoint::Open(folder.File("m"), convert);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto norm = (*checkpoint)->LoadFloat({Part::kFinalNorm});
    ASSERT_TRUE(norm.ok());
    EXPECT_NEAR(norm->rows().row(0)[0], 1.0f, 0.5f);
  }
}

TEST(RandomCheckpointFileTest, RefusesSizesThatContradictAndFoldersInUse) {
  const TemporaryFolder folder;
  RandomCheckpointOptions options;
  options.num_experts = 4;
  options.top_k = 5;
  EXPECT_THAT(std::string(WriteRandomCheckpoint(folder.File("m"), options).message()),
              HasSubstr("num_experts_per_tok is 5"));
  EXPECT_FALSE(std::filesystem::exists(folder.File("m")));
  options.top_k = 2;
  EXPECT_TRUE(WriteRandomCheckpoint(folder.File("m"), options).ok());
  EXPECT_EQ(WriteRandomCheckpoint(folder.File("m"), options).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(ModelShapeTest, HasTheNumberOfParametersThatIsPublished) {
  // Billions, as the models' pages say.
  const std::vector<std::pair<std::string, double>> published = {
      {"olmoe-1b-7b", 6.92}, {"qwen3-30b-a3b", 30.5}, {"deepseek-v3", 671}, {"demo", 0.0105}};
  EXPECT_EQ(ModelShapeNames().size(), published.size());
  for (const auto& [name, billions] : published) {
    const auto shape = FindModelShape(name);
    ASSERT_TRUE(shape.ok()) << shape.status();
    const auto bytes = RandomCheckpointBytes(*shape);
    ASSERT_TRUE(bytes.ok()) << name << ": " << bytes.status();
    EXPECT_NEAR(static_cast<double>(*bytes) / 2e9, billions, billions * 0.002) << name;
  }
  EXPECT_THAT(std::string(FindModelShape("gpt-9").status().message()), HasSubstr("gpt-9"));
}

TEST(ModelShapeTest, ScalesToAboutSoManyTimesTheWeights) {
  for (const std::string& name : ModelShapeNames()) {
    const RandomCheckpointOptions shape = *FindModelShape(name);
    const auto bytes = static_cast<double>(*RandomCheckpointBytes(shape));
    EXPECT_EQ(*RandomCheckpointBytes(ScaleShape(shape, 1)), static_cast<uint64_t>(bytes)) << name;
    const RandomCheckpointOptions scaled = ScaleShape(shape, 50);
    const auto grown = RandomCheckpointBytes(scaled);
    ASSERT_TRUE(grown.ok()) << name << ": " << grown.status();
    // An embedding grows by the root alone.
    EXPECT_GT(static_cast<double>(*grown), 0.8 * 50 * bytes) << name;
    EXPECT_LT(static_cast<double>(*grown), 1.2 * 50 * bytes) << name;
    EXPECT_EQ(scaled.num_layers, shape.num_layers);
    EXPECT_EQ(scaled.num_experts, shape.num_experts);
  }
}

TEST(ModelShapeTest, WhatTheDiskHasNoRoomForIsRefusedBeforeAnythingIsMade) {
  const TemporaryFolder folder;
  RandomCheckpointOptions options = *FindModelShape("deepseek-v3");
  options.hidden_size = 65536;  // some 12 TB
  const absl::Status status = WriteRandomCheckpoint(folder.File("m"), options);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the file system has"));
  EXPECT_FALSE(std::filesystem::exists(folder.File("m")));
}

TEST(RandomCheckpointFileTest, ReportsProgressToTheLastByte) {
  const TemporaryFolder folder;
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.File("m"), {}, [&](uint64_t done, uint64_t total) {
                EXPECT_GT(done, last_done);
                last_done = done;
                last_total = total;
              }).ok());
  EXPECT_GT(last_done, 0u);
  EXPECT_EQ(last_done, last_total);
}

}  // namespace
}  // namespace moebius
