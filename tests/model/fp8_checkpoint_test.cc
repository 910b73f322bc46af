// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/quantization.h"
#include "moebius/model/random_checkpoint.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kUp[] = "model.layers.1.mlp.experts.2.up_proj.weight";
constexpr char kUpScales[] = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv";

void SetBlocks(MiniCheckpoint& mini, int64_t rows, int64_t columns) {
  mini.config.Set("quantization_config",
                  *Json::Parse(absl::StrCat(R"({"quant_method": "fp8", "fmt": "e4m3",
                      "activation_scheme": "dynamic", "weight_block_size": [)",
                                            rows, ", ", columns, "]}"),
                               "test"));
}

// Blocks of 16 against experts of width 24: the last ones are half blocks.
MiniCheckpoint MiniFp8() {
  MiniCheckpoint mini;
  mini.config.Set("moe_intermediate_size", Json::Integer(24));
  SetBlocks(mini, 16, 16);
  mini.dtype = "F8_E4M3";
  return mini;
}

MiniTensor& Named(std::vector<MiniTensor>& tensors, const std::string& name) {
  for (MiniTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors[0];
}

// Opens the folder and loads all of its weights as the services do.
absl::Status LoadAll(const MiniCheckpoint& mini) {
  TemporaryFolder folder;
  mini.Write(folder.path());
  const auto checkpoint = Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const Part part : {Part::kQ, Part::kK, Part::kV, Part::kO}) {
      const auto weights = (*checkpoint)->LoadWeights({part, layer});
      if (!weights.ok()) return weights.status();
    }
    for (int32_t expert = 0; expert < config.gate.num_experts; ++expert) {
      const auto weights = (*checkpoint)->ExpertSlice(LayerId(layer), ExpertId(expert));
      if (!weights.ok()) return weights.status();
    }
  }
  return absl::OkStatus();
}

std::string Refusal(const std::function<void(std::vector<MiniTensor>&)>& edit) {
  MiniCheckpoint mini = MiniFp8();
  mini.edit_tensors = edit;
  const absl::Status status = LoadAll(mini);
  return status.ok() ? "accepted" : std::string(status.message());
}

TEST(Fp8CheckpointTest, StaysFp8WithItsScalesAndPartialBlocks) {
  TemporaryFolder folder;
  MiniFp8().Write(folder.path());
  const auto opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint& checkpoint = **opened;
  EXPECT_EQ(checkpoint.numerics().dtype, "fp8");
  EXPECT_EQ(FeedForwardWeightTypes(checkpoint.match().parameters), "fp8");
  EXPECT_EQ(AttentionWeightTypes(checkpoint.match().parameters), "fp8");
  EXPECT_EQ(WithBlockSize("bf16", {128, 64}), "bf16");
  EXPECT_EQ(WithBlockSize("fp8", {128, 64}), "fp8-128x64");
  EXPECT_EQ(WithBlockSize("bf16+fp8", {128, 64}), "bf16+fp8-128x64");
  const auto weights = checkpoint.ExpertSlice(LayerId(1), ExpertId(2));
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_TRUE(weights->up.is_fp8());
  const WeightRows up = weights->up.rows();
  EXPECT_EQ(up.fp8.scales.num_rows, 2);
  const auto dequantised = checkpoint.LoadFloat({Part::kExpertUp, 1, 2});
  ASSERT_TRUE(dequantised.ok()) << dequantised.status();
  // Read without the code under test's conversions.
  const TensorDirectory::Entry codes = *checkpoint.directory().Find(kUp);
  const TensorDirectory::Entry scales = *checkpoint.directory().Find(kUpScales);
  const auto stored = *codes.file->ReadAll<uint8_t>(*codes.info);
  const auto stored_scales = *scales.file->ReadAll<float>(*scales.info);
  for (int64_t row = 0; row < 24; ++row) {
    for (int64_t column = 0; column < 32; ++column) {
      const uint8_t code = stored[static_cast<size_t>(row * 32 + column)];
      const float scale = stored_scales[static_cast<size_t>(row / 16 * 2 + column / 16)];
      ASSERT_EQ(up.fp8.codes.row(row)[column], code);
      ASSERT_EQ(up.fp8.scale(row, column), scale);
      ASSERT_EQ(dequantised->rows().row(row)[column], Fp8ToFloat(code) * scale);
    }
  }
}

TEST(Fp8CheckpointTest, SlicesBeginInsideBlocks) {
  RandomCheckpointOptions options;
  options.hidden_size = 40;
  options.moe_intermediate_size = 24;
  options.dense_intermediate_size = 60;
  options.num_shared_experts = 2;
  options.dtype = DType::kF8E4M3;
  options.block_rows = 16;
  options.block_columns = 32;
  TemporaryFolder folder;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.File("model"), options).ok());
  const auto opened = Checkpoint::Open(folder.File("model"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint& checkpoint = **opened;
  for (const int32_t layer : {0, 1}) {
    const bool is_dense = layer == 0;
    const auto down_whole =
        *checkpoint.LoadFloat({is_dense ? Part::kDenseDown : Part::kSharedDown, layer});
    const auto gate_whole =
        *checkpoint.LoadFloat({is_dense ? Part::kDenseGate : Part::kSharedGate, layer});
    for (int32_t slice = 0; slice < checkpoint.NumSlices(LayerId(layer)); ++slice) {
      const ExpertId id(8 + slice);
      const auto weights = checkpoint.ExpertSlice(LayerId(layer), id);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const int64_t begin = slice * 24;
      const Fp8Rows gate = weights->gate.rows().fp8;
      const Fp8Rows down = weights->down.rows().fp8;
      const auto blocks = checkpoint.BlocksOf(LayerId(layer), id);
      EXPECT_EQ(blocks.gate_up->row_offset, gate.row_offset);
      EXPECT_EQ(blocks.down->column_offset, down.column_offset);
      for (int64_t i = 0; i < weights->gate.num_rows(); ++i) {
        for (int64_t h = 0; h < 40; ++h) {
          ASSERT_EQ(Fp8ToFloat(gate.codes.row(i)[h]) * gate.scale(i, h),
                    gate_whole.rows().row(begin + i)[h]);
          ASSERT_EQ(Fp8ToFloat(down.codes.row(h)[i]) * down.scale(h, i),
                    down_whole.rows().row(h)[begin + i]);
        }
      }
    }
  }
}

TEST(Fp8CheckpointTest, TypesFollowTheTensors) {
  // Experts in FP8, attention in bf16, as some checkpoints are.
  MiniCheckpoint mini = MiniFp8();
  mini.edit_tensors = [](std::vector<MiniTensor>& tensors) {
    std::vector<MiniTensor> kept;
    for (MiniTensor& tensor : tensors) {
      if (absl::StrContains(tensor.name, "self_attn") &&
          absl::EndsWith(tensor.name, "_scale_inv")) {
        continue;
      }
      if (absl::StrContains(tensor.name, "self_attn") && tensor.dtype == "F8_E4M3") {
        tensor.dtype = "BF16";
        tensor.bytes = EncodeElements(std::vector<float>(tensor.bytes.size(), 0.5f), "BF16");
      }
      kept.push_back(std::move(tensor));
    }
    tensors = std::move(kept);
  };
  TemporaryFolder folder;
  mini.Write(folder.path());
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(AttentionWeightTypes((*checkpoint)->match().parameters), "bf16");
  EXPECT_EQ(FeedForwardWeightTypes((*checkpoint)->match().parameters), "fp8");
  EXPECT_TRUE((*checkpoint)->LoadBf16({Part::kQ, 0}).ok());
}

TEST(Fp8CheckpointTest, MissingOrMisshapenScalesAreRefusedWithNamesAndShapes) {
  EXPECT_THAT(Refusal([](auto& tensors) {
                std::erase_if(tensors, [](const auto& t) { return t.name == kUpScales; });
              }),
              AllOf(HasSubstr(absl::StrCat(kUp, " is F8_E4M3 [24, 32]")),
                    HasSubstr(absl::StrCat("there is no ", kUpScales))));
  EXPECT_THAT(Refusal([](auto& tensors) {
                MiniTensor& scales = Named(tensors, kUpScales);
                scales.shape = {1, 2};  // floor instead of ceil
                scales.bytes.resize(8);
              }),
              AllOf(HasSubstr(absl::StrCat(kUp, " is F8_E4M3 [24, 32]")),
                    HasSubstr(absl::StrCat(kUpScales, " F32 [1, 2], expected F32 [2, 2]"))));
  EXPECT_THAT(Refusal([](auto& tensors) {
                MiniTensor& scales = Named(tensors, kUpScales);
                scales.dtype = "BF16";
                scales.bytes.resize(8);
              }),
              HasSubstr(absl::StrCat(kUpScales, " BF16 [2, 2], expected F32 [2, 2]")));
  MiniCheckpoint mini = MiniFp8();
  TemporaryFolder folder;
  mini.Write(folder.path());
  Json config = *Json::Parse(ReadFileBytes(folder.File("config.json")), "test");
  config.Set("quantization_config", Json());
  WriteFile(folder.File("config.json"), config.ToPrettyText());
  EXPECT_THAT(std::string(Checkpoint::Open(folder.path()).status().message()),
              AllOf(HasSubstr("is F8_E4M3 ["), HasSubstr("_scale_inv F32 ["),
                    HasSubstr("config.json has no quantization_config")));
}

TEST(Fp8CheckpointTest, WhatHasNoPlaceIsRefusedByName) {
  EXPECT_THAT(Refusal([](auto& tensors) {
                MiniTensor& gate = Named(tensors, "model.layers.0.mlp.gate.weight");
                gate.dtype = "F8_E4M3";
                gate.bytes.resize(gate.bytes.size() / 2);
              }),
              HasSubstr("model.layers.0.mlp.gate.weight is F8_E4M3 [4, 32], only matrices of "
                        "attention and feed-forward networks may be; this is a gate"));
  EXPECT_THAT(Refusal([](auto& tensors) {
                tensors.push_back(
                    {"model.norm.weight_scale_inv", "F32", {1, 1}, EncodeElements({1.0f}, "F32")});
              }),
              HasSubstr("model.norm.weight_scale_inv F32 [1, 1] scales no F8_E4M3 weights: "
                        "model.norm.weight is BF16 [32]"));
  // One of two that share panels.
  EXPECT_THAT(
      Refusal([](auto& tensors) {
        std::erase_if(tensors, [](const auto& t) { return t.name == kUpScales; });
        MiniTensor& up = Named(tensors, kUp);
        up.dtype = "BF16";
        up.bytes = EncodeElements(std::vector<float>(24 * 32, 1.0f), "BF16");
      }),
      HasSubstr("gate_proj.weight is F8_E4M3 and model.layers.1.mlp.experts.2.up_proj.weight"
                " is not; they are multiplied as one matrix"));
}

TEST(Fp8CheckpointTest, CodesThatAreNoNumberAreRefusedWithTheirPlace) {
  for (const char code : {'\x7F', '\xFF'}) {
    EXPECT_THAT(
        Refusal([code](auto& tensors) { Named(tensors, kUp).bytes[5 * 32 + 7] = code; }),
        AllOf(HasSubstr(kUp), HasSubstr(code == '\x7F' ? "0x7F" : "0xFF"), HasSubstr("at [5, 7]")));
  }
  EXPECT_THAT(Refusal([](auto& tensors) {
                for (char& byte : Named(tensors, kUp).bytes) byte = '\x80';
              }),
              HasSubstr(absl::StrCat("weight matrix ", kUp, " is all zeros")));
}

TEST(Fp8CheckpointTest, ScalesThatScaleNothingAreRefusedWithTheirPlace) {
  for (const float scale : {0.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e-40f}) {
    EXPECT_THAT(Refusal([scale](auto& tensors) {
                  std::memcpy(Named(tensors, kUpScales).bytes.data() + 3 * sizeof(float), &scale,
                              sizeof(float));
                }),
                AllOf(HasSubstr(kUpScales), HasSubstr("no positive normal number, at [1, 1]")))
        << scale;
  }
}

TEST(Fp8CheckpointTest, HashesTellFp8FromBf16AndItsBlocks) {
  TemporaryFolder folder;
  const auto hashes = [&folder](const std::string& name, const RandomCheckpointOptions& options) {
    EXPECT_TRUE(WriteRandomCheckpoint(folder.File(name), options).ok());
    const auto checkpoint = Checkpoint::Open(folder.File(name));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return (*checkpoint)->config_hash();
  };
  RandomCheckpointOptions options;
  const uint64_t bf16 = hashes("bf16", options);
  options.dtype = DType::kF8E4M3;
  const uint64_t fp8 = hashes("fp8", options);
  options.block_rows = 64;
  const uint64_t other_blocks = hashes("blocks", options);
  EXPECT_NE(bf16, fp8);
  EXPECT_NE(fp8, other_blocks);
  // A scale is a weight.
  const std::string file = folder.File("fp8") + "/model.safetensors";
  const auto opened = Checkpoint::Open(folder.File("fp8"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const uint64_t before = (*opened)->model_hash();
  const TensorInfo& scales =
      *(*opened)->directory().Find("model.layers.1.mlp.experts.0.up_proj.weight_scale_inv")->info;
  std::string bytes = ReadFileBytes(file);
  bytes[scales.file_offset] = static_cast<char>(bytes[scales.file_offset] ^ 1);
  WriteFile(file, bytes);
  EXPECT_NE((*Checkpoint::Open(folder.File("fp8")))->model_hash(), before);
}

TEST(Fp8CheckpointTest, AnyDamageIsAStatusOrValidWeights) {
  const char* const kTypes[] = {"F32", "F8_E4M3", "BF16", "F16", "I32", "U8", "F8_E5M2"};
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    MiniCheckpoint mini = MiniFp8();
    if (random.Below(4) == 0) {
      SetBlocks(mini, 1 + static_cast<int64_t>(random.Below(40)),
                1 + static_cast<int64_t>(random.Below(40)));
    }
    mini.edit_tensors = [&random, &kTypes](std::vector<MiniTensor>& tensors) {
      for (uint64_t edit = random.Below(3); edit < 3; ++edit) {
        MiniTensor& tensor = tensors[random.Below(tensors.size())];
        switch (random.Below(5)) {
          case 0:
            tensor.dtype = kTypes[random.Below(7)];
            break;
          case 1:
            tensor.shape[random.Below(tensor.shape.size())] =
                static_cast<int64_t>(random.Below(50));
            break;
          case 2:
            tensor.bytes.resize(random.Below(tensor.bytes.size() + 4));
            break;
          case 3:
            if (tensor.bytes.empty()) break;
            tensor.bytes[random.Below(tensor.bytes.size())] = static_cast<char>(random.Bits());
            break;
          default:
            tensor.name += random.Below(2) == 0 ? "_scale_inv" : "x";
            break;
        }
      }
    };
    const absl::Status status = LoadAll(mini);
    EXPECT_TRUE(status.ok() || !status.message().empty());
  }
}

}  // namespace
}  // namespace moebius
