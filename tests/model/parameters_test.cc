// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/parameters.h"

#include <set>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/random_checkpoint.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::HasSubstr;
using testing::Not;

absl::Status OpenMini(const MiniCheckpoint& mini, const CheckpointOptions& options = {}) {
  const TemporaryFolder folder;
  mini.Write(folder.path());
  return Checkpoint::Open(folder.path(), options).status();
}

std::string Refusal(const std::function<void(std::vector<MiniTensor>&)>& edit) {
  MiniCheckpoint mini;
  mini.edit_tensors = edit;
  const absl::Status status = OpenMini(mini);
  return status.ok() ? "accepted" : std::string(status.message());
}

MiniTensor& Named(std::vector<MiniTensor>& tensors, const std::string& name) {
  for (MiniTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

void Erase(std::vector<MiniTensor>& tensors, const std::string& part) {
  std::erase_if(tensors, [&](const MiniTensor& t) { return absl::StrContains(t.name, part); });
}

MiniTensor Filled(const std::string& name, std::vector<int64_t> shape,
                  const std::string& dtype = "BF16") {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return {name, dtype, shape, EncodeElements(std::vector<float>(count, 0.5f), dtype)};
}

TEST(ParametersTest, NamesAreDistinctAndKeysToo) {
  for (const Family family : {Family::kDeepseekV3, Family::kKimiK2, Family::kGlm4Moe,
                              Family::kQwen3Moe, Family::kOlmoe, Family::kMixtral}) {
    RandomCheckpointOptions options;
    options.family = family;
    const auto config = ParseModelConfig(RandomConfigText(options));
    ASSERT_TRUE(config.ok()) << config.status();
    std::set<std::string> names;
    std::set<ParameterKey> keys;
    for (const Parameter& parameter : ExpectedParameters(*config)) {
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
      EXPECT_TRUE(keys.insert(parameter.key).second) << parameter.name;
      EXPECT_EQ(TensorName(*config, parameter.key), parameter.name);
    }
  }
}

TEST(ParametersTest, MissingTensorsAreCountedAndTheFirstFiveNamed) {
  EXPECT_THAT(Refusal([](auto& tensors) { Erase(tensors, "layers.1.mlp.experts.2.up_proj"); }),
              HasSubstr("1 parameter has no tensor: model.layers.1.mlp.experts.2.up_proj.weight"));
  const std::string many = Refusal([](auto& tensors) { Erase(tensors, "layers.0.mlp.experts."); });
  EXPECT_THAT(many, HasSubstr("12 parameters have no tensor: "
                              "model.layers.0.mlp.experts.0.gate_proj.weight"));
  EXPECT_THAT(many, HasSubstr("experts.1.up_proj.weight, …"));
  EXPECT_THAT(many, Not(HasSubstr("experts.1.down_proj")));
}

TEST(ParametersTest, AMissingHeadOfAnUntiedModelIsNeverInvented) {
  MiniCheckpoint mini;
  mini.edit_tensors = [](auto& tensors) { Erase(tensors, "lm_head"); };
  EXPECT_EQ(OpenMini(mini).message(), "lm_head.weight missing and tie_word_embeddings=false");
  CheckpointOptions options;
  options.tie_missing_head = true;
  EXPECT_TRUE(OpenMini(mini, options).ok());
  mini.settings = *Json::Parse(R"({"tie_missing_head": true})", "x");
  EXPECT_TRUE(OpenMini(mini).ok());
}

TEST(ParametersTest, UnexpectedTensorsAreCountedAndNamed) {
  EXPECT_THAT(Refusal([](auto& tensors) { tensors.push_back(Filled("model.extra.weight", {3})); }),
              HasSubstr("1 tensor is no parameter: model.extra.weight"));
  EXPECT_THAT(Refusal([](auto& tensors) {
                tensors.push_back(Filled("model.layers.2.self_attn.q_proj.weight", {3}));
              }),
              HasSubstr("1 tensor is no parameter: model.layers.2.self_attn.q_proj.weight"));
}

TEST(ParametersTest, AMisspeltExpertIsBothMissingAndUnexpected) {
  const std::string message = Refusal([](auto& tensors) {
    Named(tensors, "model.layers.0.mlp.experts.3.up_proj.weight").name =
        "model.layers.0.mlp.expert.3.up_proj.weight";
  });
  EXPECT_THAT(message, HasSubstr("1 parameter has no tensor: "
                                 "model.layers.0.mlp.experts.3.up_proj.weight"));
  EXPECT_THAT(message, HasSubstr("1 tensor is no parameter: "
                                 "model.layers.0.mlp.expert.3.up_proj.weight"));
}

TEST(ParametersTest, AnotherShapeIsNamedWithBothShapes) {
  EXPECT_THAT(Refusal([](auto& tensors) {
                MiniTensor& tensor = Named(tensors, "model.layers.0.self_attn.k_proj.weight");
                tensor.shape = {32, 16};
              }),
              HasSubstr("1 tensor has another shape: model.layers.0.self_attn.k_proj.weight is "
                        "[32, 16], expected [16, 32]"));
}

TEST(ParametersTest, FusedExpertsAreRefusedByName) {
  MiniCheckpoint mini;
  mini.edit_tensors = [](auto& tensors) {
    Erase(tensors, "layers.0.mlp.experts.");
    tensors.push_back(Filled("model.layers.0.mlp.experts.gate_up_proj", {4, 32, 32}));
    tensors.push_back(Filled("model.layers.0.mlp.experts.down_proj", {4, 32, 16}));
  };
  const absl::Status status = OpenMini(mini);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "experts fused into one tensor are not supported: "
            "model.layers.0.mlp.experts.down_proj BF16 [4, 32, 16]");
  EXPECT_THAT(HintOf(status), HasSubstr("one tensor per expert"));
}

TEST(ParametersTest, ExpertsUnderAnotherFamilysNamesAreRefused) {
  EXPECT_THAT(Refusal([](auto& tensors) {
                for (MiniTensor& tensor : tensors) {
                  const size_t at = tensor.name.find(".gate_proj.");
                  if (at != std::string::npos) tensor.name.replace(at, 11, ".w1.");
                }
              }),
              HasSubstr("8 tensors are no parameter: model.layers.0.mlp.experts.0.w1.weight"));
}

TEST(ParametersTest, OtherQuantisedWeightsAreRefusedByName) {
  EXPECT_THAT(
      Refusal([](auto& tensors) {
        tensors.push_back(Filled("model.layers.0.self_attn.q_proj.weight_scale", {1, 1}, "F32"));
      }),
      HasSubstr("quantised weights are not supported: "
                "model.layers.0.self_attn.q_proj.weight_scale F32 [1, 1]"));
  EXPECT_THAT(
      Refusal([](auto& tensors) {
        MiniTensor& tensor = Named(tensors, "model.layers.0.self_attn.q_proj.weight");
        tensor.dtype = "F8_E5M2";
        tensor.bytes.resize(tensor.bytes.size() / 2);
      }),
      HasSubstr(
          "model.layers.0.self_attn.q_proj.weight is F8_E5M2, only BF16, F16, F32 and F8_E4M3"));
}

TEST(ParametersTest, WiderTypesNeedAnExplicitWish) {
  for (const char* dtype : {"F16", "F32"}) {
    MiniCheckpoint mini;
    mini.dtype = dtype;
    const absl::Status refused = OpenMini(mini);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(dtype));
    EXPECT_THAT(HintOf(refused), HasSubstr("--dtype=bf16"));
    CheckpointOptions convert;
    convert.convert_to_bf16 = true;
    EXPECT_TRUE(OpenMini(mini, convert).ok());
    CheckpointOptions as_stored;
    as_stored.reads_as_stored = true;
    EXPECT_TRUE(OpenMini(mini, as_stored).ok());
  }
}

TEST(ParametersTest, AGateInFp32NeedsNoWish) {
  EXPECT_EQ(Refusal([](auto& tensors) {
              MiniTensor& gate = Named(tensors, "model.layers.0.mlp.gate.weight");
              gate = Filled(gate.name, gate.shape, "F32");
            }),
            "accepted");
}

TEST(ParametersTest, RotaryFrequenciesAreOnTheIgnoreList) {
  EXPECT_EQ(Refusal([](auto& tensors) {
              tensors.push_back(Filled("model.layers.0.self_attn.rotary_emb.inv_freq", {4}, "F32"));
            }),
            "accepted");
}

MiniCheckpoint MiniDeepseek() {
  MiniCheckpoint mini;
  RandomCheckpointOptions options;
  options.hidden_size = 32;
  options.num_experts = 4;
  mini.config = *Json::Parse(RandomConfigText(options), "x");
  mini.generation = Json();
  return mini;
}

TEST(ParametersTest, NextTokenLayersAreIgnoredWhenTheyAreTheModule) {
  MiniCheckpoint mini = MiniDeepseek();
  mini.edit_tensors = [](auto& tensors) {
    tensors.push_back(Filled("model.layers.2.eh_proj.weight", {32, 64}));
    tensors.push_back(Filled("model.layers.2.enorm.weight", {32}));
    tensors.push_back(Filled("model.layers.2.shared_head.head.weight", {320, 32}));
    tensors.push_back(Filled("model.layers.2.mlp.experts.0.up_proj.weight", {32, 32}));
  };
  const TemporaryFolder folder;
  mini.Write(folder.path());
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->match().num_ignored, 4);
}

TEST(ParametersTest, AnOrdinaryLayerBeyondTheLastIsNotIgnored) {
  MiniCheckpoint mini = MiniDeepseek();
  mini.edit_tensors = [](auto& tensors) {
    tensors.push_back(Filled("model.layers.2.input_layernorm.weight", {32}));
  };
  EXPECT_THAT(std::string(OpenMini(mini).message()),
              HasSubstr("1 tensor is no parameter: model.layers.2.input_layernorm.weight"));
}

TEST(ParametersTest, ATiedHeadsCopyIsReadOnlyWhereItIsACopy) {
  for (const bool equal : {true, false}) {
    MiniCheckpoint mini;
    mini.edit_tensors = [equal](auto& tensors) {
      MiniTensor& head = Named(tensors, "lm_head.weight");
      head.bytes = Named(tensors, "model.embed_tokens.weight").bytes;
      if (!equal) head.bytes.back() ^= 1;
    };
    const TemporaryFolder folder;
    mini.Write(folder.path());
    mini.config.Set("tie_word_embeddings", Json::Boolean(true));
    WriteFile(folder.File("config.json"), mini.config.ToPrettyText());
    const absl::Status status = Checkpoint::Open(folder.path()).status();
    EXPECT_EQ(status.ok(), equal) << status;
    if (!equal) {
      EXPECT_EQ(status.message(),
                "tie_word_embeddings=true, but lm_head.weight is not the embedding");
    }
  }
}

}  // namespace
}  // namespace moebius
