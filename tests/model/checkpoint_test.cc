// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/checkpoint.h"

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/model/random_checkpoint.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Demo() { return absl::StrCat(MOEBIUS_SOURCE_DIR, "/models/demo"); }

std::unique_ptr<const Checkpoint> OpenOrFail(const std::string& folder,
                                             const CheckpointOptions& options = {}) {
  auto checkpoint = Checkpoint::Open(folder, options);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

/// The stored bits of a BF16 tensor, read without the code under test's conversions.
std::vector<Bf16> Stored(const Checkpoint& checkpoint, const std::string& name) {
  const TensorDirectory::Entry* entry = checkpoint.directory().Find(name);
  return *entry->file->ReadAll<Bf16>(*entry->info);
}

TEST(CheckpointTest, OpensTheDemoWithItsConstantsAndTokenizer) {
  const auto checkpoint = OpenOrFail(Demo());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->numerics().span, 128);
  EXPECT_EQ(checkpoint->numerics().key_block, 128);
  EXPECT_EQ(checkpoint->numerics().num_combine_groups, 4);
  EXPECT_EQ(checkpoint->numerics().slice_width, 96);
  EXPECT_EQ(checkpoint->config().NumDenseSlices(), 6);
  EXPECT_THAT(checkpoint->config().eos_token_ids, ElementsAre(257));
  EXPECT_EQ(checkpoint->config().eos_source, "generation_config.json");
  EXPECT_EQ(checkpoint->generation_defaults().do_sample, false);
  const auto tokenizer = checkpoint->MakeTokenizer();
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->name(), "bytes");
  EXPECT_EQ((*tokenizer)->bos_token_id(), 256);
}

TEST(CheckpointTest, AFolderWithoutTokenizerSaysWhatToDo) {
  const auto checkpoint = OpenOrFail(absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/olmoe"));
  const absl::Status status = checkpoint->MakeTokenizer().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(HintOf(status), HasSubstr("--prompt-ids"));
}

TEST(CheckpointTest, LoadsAMatrixAsItIsStored) {
  const auto checkpoint = OpenOrFail(Demo());
  const auto q_a = checkpoint->LoadBf16({Part::kQA, 2});
  ASSERT_TRUE(q_a.ok()) << q_a.status();
  EXPECT_EQ(q_a->num_rows(), 96);
  EXPECT_EQ(q_a->width(), 192);
  const std::vector<Bf16> stored = Stored(*checkpoint, "model.layers.2.self_attn.q_a_proj.weight");
  for (int64_t row = 0; row < 96; ++row) {
    for (int64_t col = 0; col < 192; ++col) {
      ASSERT_EQ(q_a->rows().row(row)[col], stored[static_cast<size_t>(row * 192 + col)]);
    }
  }
  const auto norm = checkpoint->LoadBf16({Part::kFinalNorm});
  ASSERT_TRUE(norm.ok());
  EXPECT_EQ(norm->num_rows(), 1);
  EXPECT_EQ(norm->width(), 192);
}

TEST(CheckpointTest, CutsADenseLayerIntoSlicesThatCoverItOnce) {
  const TemporaryFolder folder;
  RandomCheckpointOptions options;
  options.moe_intermediate_size = 32;
  options.dense_intermediate_size = 80;  // 32 + 32 + 16
  options.num_shared_experts = 2;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.File("m"), options).ok());
  const auto checkpoint = OpenOrFail(folder.File("m"));
  ASSERT_NE(checkpoint, nullptr);
  const int64_t hidden = checkpoint->config().hidden_size;
  const int32_t num_experts = checkpoint->config().gate.num_experts;
  for (const int32_t layer : {0, 1}) {
    const bool is_dense = layer == 0;
    const std::string prefix =
        absl::StrCat("model.layers.", layer, is_dense ? ".mlp." : ".mlp.shared_experts.");
    const int64_t total = is_dense ? 80 : 64;
    const std::vector<Bf16> gate = Stored(*checkpoint, prefix + "gate_proj.weight");
    const std::vector<Bf16> down = Stored(*checkpoint, prefix + "down_proj.weight");
    ASSERT_EQ(checkpoint->NumSlices(LayerId(layer)), is_dense ? 3 : 2);
    int64_t begin = 0;
    for (int32_t slice = 0; slice < checkpoint->NumSlices(LayerId(layer)); ++slice) {
      const ExpertId id(num_experts + slice);
      const auto weights = checkpoint->ExpertSlice(LayerId(layer), id);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const int64_t width = weights->gate.num_rows();
      EXPECT_EQ(width, checkpoint->SliceWidth(LayerId(layer), id));
      EXPECT_EQ(weights->down.num_rows(), hidden);
      EXPECT_EQ(weights->down.width(), width);
      for (int64_t i = 0; i < width; ++i) {
        for (int64_t h = 0; h < hidden; ++h) {
          ASSERT_EQ(weights->gate.rows().bf16.row(i)[h],
                    gate[static_cast<size_t>((begin + i) * hidden + h)]);
          ASSERT_EQ(weights->down.rows().bf16.row(h)[i],
                    down[static_cast<size_t>(h * total + begin + i)]);
        }
      }
      begin += width;
    }
    EXPECT_EQ(begin, total);
  }
}

TEST(CheckpointTest, GivesEachRoutedExpertItsOwnWeights) {
  const auto checkpoint =
      OpenOrFail(absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/mixtral"));
  for (const int32_t expert : {0, 5, 7}) {
    const auto weights = checkpoint->ExpertSlice(LayerId(1), ExpertId(expert));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::string prefix =
        absl::StrCat("model.layers.1.block_sparse_moe.experts.", expert, ".");
    // Mixtral's w1 gates, w3 goes up, w2 comes down.
    EXPECT_EQ(weights->gate.rows().bf16.row(3)[5],
              Stored(*checkpoint, prefix + "w1.weight")[3 * 64 + 5]);
    EXPECT_EQ(weights->up.rows().bf16.row(3)[5],
              Stored(*checkpoint, prefix + "w3.weight")[3 * 64 + 5]);
    EXPECT_EQ(weights->down.rows().bf16.row(3)[5],
              Stored(*checkpoint, prefix + "w2.weight")[3 * 80 + 5]);
  }
}

TEST(CheckpointTest, WidensAndRoundsTheOtherTypesExactly) {
  for (const char* dtype : {"F16", "F32"}) {
    MiniCheckpoint mini;
    mini.dtype = dtype;
    mini.edit_tensors = [&](std::vector<MiniTensor>& tensors) {
      for (MiniTensor& tensor : tensors) {
        if (tensor.name != "model.norm.weight") continue;
        std::vector<float> values(32, 1.0f);
        values[0] = 1.00390625f;  // half way between two bf16: to even, down
        values[1] = 1.01171875f;  // half way: to even, up
        values[2] = -0.333251953125f;
        tensor.bytes = EncodeElements(values, dtype);
      }
    };
    const TemporaryFolder folder;
    mini.Write(folder.path());
    CheckpointOptions options;
    options.convert_to_bf16 = true;
    const auto checkpoint = OpenOrFail(folder.path(), options);
    const auto rounded = checkpoint->LoadBf16({Part::kFinalNorm});
    ASSERT_TRUE(rounded.ok());
    EXPECT_EQ(ToFloat(rounded->rows().row(0)[0]), 1.0f);
    EXPECT_EQ(ToFloat(rounded->rows().row(0)[1]), 1.015625f);
    EXPECT_EQ(ToFloat(rounded->rows().row(0)[2]), -0.333984375f);
    const auto stored = checkpoint->LoadFloat({Part::kFinalNorm});
    ASSERT_TRUE(stored.ok());
    EXPECT_EQ(stored->rows().row(0)[0], 1.00390625f);
    EXPECT_EQ(stored->rows().row(0)[2], -0.333251953125f);
  }
}

TEST(CheckpointTest, TheCorrectionBiasKeepsItsFp32) {
  const auto checkpoint = OpenOrFail(Demo());
  const auto bias = checkpoint->LoadFloat({Part::kCorrectionBias, 1});
  ASSERT_TRUE(bias.ok());
  const TensorDirectory::Entry* entry =
      checkpoint->directory().Find("model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(bias->rows().row(0)[7], (*entry->file->ReadAll<float>(*entry->info))[7]);
}

TEST(CheckpointTest, ATiedHeadIsTheEmbedding) {
  const auto checkpoint =
      OpenOrFail(absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/qwen3_moe_tied"));
  const auto head = checkpoint->LoadBf16({Part::kHead});
  const auto embedding = checkpoint->LoadBf16({Part::kEmbedding});
  ASSERT_TRUE(head.ok() && embedding.ok());
  EXPECT_EQ(head->rows().row(17)[3], embedding->rows().row(17)[3]);
  EXPECT_TRUE(checkpoint->Has({Part::kHead}));
  EXPECT_FALSE(checkpoint->Has({Part::kQBias, 0}));
}

TEST(CheckpointTest, AMatrixOfZerosIsRefusedByNameUnlessAllowed) {
  MiniCheckpoint mini;
  const std::string name = "model.layers.1.mlp.experts.2.down_proj.weight";
  mini.edit_tensors = [&](std::vector<MiniTensor>& tensors) {
    for (MiniTensor& tensor : tensors) {
      if (tensor.name == name) tensor.bytes.assign(tensor.bytes.size(), '\0');
    }
  };
  const TemporaryFolder folder;
  mini.Write(folder.path());
  const auto checkpoint = OpenOrFail(folder.path());
  EXPECT_TRUE(checkpoint->ExpertSlice(LayerId(1), ExpertId(1)).ok());
  for (const absl::Status& status : {checkpoint->ExpertSlice(LayerId(1), ExpertId(2)).status(),
                                     checkpoint->LoadFloat({Part::kExpertDown, 1, 2}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("weight matrix ", name, " is all zeros")));
  }
  CheckpointOptions options;
  options.zero_matrices = ZeroMatrices::kAllow;
  EXPECT_TRUE(OpenOrFail(folder.path(), options)->ExpertSlice(LayerId(1), ExpertId(2)).ok());
  WriteFile(folder.File("moebius.json"), R"({"allow_zero_matrices": true})");
  EXPECT_TRUE(OpenOrFail(folder.path())->ExpertSlice(LayerId(1), ExpertId(2)).ok());
}

TEST(CheckpointTest, GenerationConfigWinsOverConfigForEndIds) {
  MiniCheckpoint mini;
  mini.generation.Set("eos_token_id", *Json::Parse("[3, 5]", "x"));
  const TemporaryFolder folder;
  mini.Write(folder.path());
  const auto both = OpenOrFail(folder.path());
  EXPECT_THAT(both->config().eos_token_ids, ElementsAre(3, 5));
  EXPECT_EQ(both->config().eos_source, "generation_config.json");
  std::filesystem::remove(folder.File("generation_config.json"));
  const auto one = OpenOrFail(folder.path());
  EXPECT_THAT(one->config().eos_token_ids, ElementsAre(3));
  EXPECT_EQ(one->config().eos_source, "config.json");
  WriteFile(folder.File("generation_config.json"), R"({"eos_token_id": 97})");
  EXPECT_THAT(std::string(Checkpoint::Open(folder.path()).status().message()),
              HasSubstr("generation_config.json: eos_token_id 97 is outside the vocabulary of 97"));
}

TEST(CheckpointTest, TheHashDoesNotDependOnShardsOrSpelling) {
  std::vector<uint64_t> hashes;
  for (const int num_shards : {1, 2, 5}) {
    MiniCheckpoint mini;
    mini.num_shards = num_shards;
    mini.config.Set("unread_field", Json::Integer(num_shards));
    const TemporaryFolder folder;
    mini.Write(folder.path());
    hashes.push_back(OpenOrFail(folder.path())->model_hash());
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

TEST(CheckpointTest, TheHashSeesWeightsConfigurationAndConstants) {
  const auto open = [](const std::function<void(MiniCheckpoint&)>& edit) {
    MiniCheckpoint mini;
    edit(mini);
    const TemporaryFolder folder;
    mini.Write(folder.path());
    return OpenOrFail(folder.path());
  };
  const auto base = open([](MiniCheckpoint&) {});
  const auto weights = open([](MiniCheckpoint& mini) { mini.seed = 1; });
  const auto config =
      open([](MiniCheckpoint& mini) { mini.config.Set("norm_topk_prob", Json::Boolean(false)); });
  const auto one_bit = open([](MiniCheckpoint& mini) {
    mini.edit_tensors = [](std::vector<MiniTensor>& tensors) { tensors[5].bytes[3] ^= 1; };
  });
  const auto span =
      open([](MiniCheckpoint& mini) { mini.settings = *Json::Parse("{\"span\": 64}", "x"); });
  EXPECT_NE(base->model_hash(), weights->model_hash());
  EXPECT_NE(base->model_hash(), config->model_hash());
  EXPECT_NE(base->model_hash(), one_bit->model_hash());
  EXPECT_EQ(base->model_hash(), span->model_hash());
  EXPECT_NE(base->config_hash(), span->config_hash());
}

TEST(CheckpointTest, ReadsFromManyThreads) {
  const auto checkpoint = OpenOrFail(Demo());
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t expert = 0; expert < 32; ++expert) {
        if (!checkpoint->ExpertSlice(LayerId(1 + static_cast<int32_t>(t)), ExpertId(expert)).ok()) {
          ++failures[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, ElementsAre(0, 0, 0, 0));
}

TEST(CheckpointTest, FoldersThatAreNoModelSaySo) {
  const TemporaryFolder folder;
  const absl::Status missing = Checkpoint::Open(folder.File("nothing")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no such folder"));
  const absl::Status empty = Checkpoint::Open(folder.path()).status();
  EXPECT_THAT(std::string(empty.message()), HasSubstr("config.json: no such file"));
  EXPECT_FALSE(HintOf(empty).empty());
  WriteFile(folder.File("file"), "x");
  EXPECT_THAT(std::string(Checkpoint::Open(folder.File("file")).status().message()),
              HasSubstr("is a file, not a folder"));
  std::filesystem::create_symlink("../gone/config.json", folder.File("config.json"));
  EXPECT_THAT(std::string(Checkpoint::Open(folder.path()).status().message()),
              HasSubstr("config.json is a link to ../gone/config.json, which is not visible here"));
}

TEST(CheckpointTest, ALinkThatWorksIsReadLikeAFile) {
  const TemporaryFolder folder;
  MiniCheckpoint mini;
  mini.Write(folder.File("blobs"));
  std::filesystem::create_directory(folder.File("snapshot"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.File("blobs"))) {
    std::filesystem::create_symlink("../blobs/" + entry.path().filename().string(),
                                    folder.File("snapshot/" + entry.path().filename().string()));
  }
  EXPECT_NE(OpenOrFail(folder.File("snapshot")), nullptr);
}

}  // namespace
}  // namespace moebius
