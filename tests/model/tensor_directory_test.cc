// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/tensor_directory.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::HasSubstr;

std::string IndexRefusal(const std::string& text) {
  const auto entries = ParseSafetensorsIndex(text, "index.json");
  return entries.ok() ? "accepted" : std::string(entries.status().message());
}

TEST(SafetensorsIndexTest, ReadsTheWeightMapAndSkipsTheRest) {
  const auto entries = ParseSafetensorsIndex(
      R"({"metadata": {"total_size": 7, "x": [{"weight_map": 1}]},
          "weight_map": {"b": "2.safetensors", "a": "1.safetensors"}, "other": [1, {"y": "z"}]})",
      "index.json");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].tensor, "a");
  EXPECT_EQ((*entries)[0].file, "1.safetensors");
}

TEST(SafetensorsIndexTest, RefusesEveryMalformedIndex) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "not valid JSON"},
      {"[]", "must be an object"},
      {"3", "must be an object"},
      {"{}", "weight_map is absent"},
      {R"({"weight_map": {}})", "weight_map is empty"},
      {R"({"weight_map": []})", "must map names to file names"},
      {R"({"weight_map": "x"})", "must map names"},
      {R"({"weight_map": null})", "where a file name belongs"},
      {R"({"weight_map": {"a": 1}})", "an integer where a file name belongs"},
      {R"({"weight_map": {"a": {"b": "c.safetensors"}}})", "must map names"},
      {R"({"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}})", "duplicate key \"a\""},
      {R"({"weight_map": {"a": "1.safetensors"}, "weight_map": {}})", "duplicate key weight_map"},
      {R"({"weight_map": {"a": "../1.safetensors"}})", "no plain name"},
      {R"({"weight_map": {"a": "/etc/1.safetensors"}})", "no plain name"},
      {R"({"weight_map": {"a": "x/1.safetensors"}})", "no plain name"},
      {R"({"weight_map": {"a": ".hidden.safetensors"}})", "no plain name"},
      {R"({"weight_map": {"a": "1.safetensors\u0000"}})", "no plain name"},
      {R"({"weight_map": {"a": "1.bin"}})", "no plain name"},
      {R"({"weight_map": {"a": ""}})", "no plain name"},
  };
  for (const auto& [text, message] : cases) EXPECT_THAT(IndexRefusal(text), HasSubstr(message));
}

absl::Status OpenMini(const MiniCheckpoint& mini,
                      const std::function<void(const TemporaryFolder&)>& spoil = nullptr) {
  const TemporaryFolder folder;
  mini.Write(folder.path());
  if (spoil) spoil(folder);
  return TensorDirectory::Open(folder.path()).status();
}

TEST(TensorDirectoryTest, OpensOneFileAndManyShardsAlike) {
  for (const int num_shards : {1, 2, 3, 7}) {
    MiniCheckpoint mini;
    mini.num_shards = num_shards;
    const TemporaryFolder folder;
    mini.Write(folder.path());
    const auto directory = TensorDirectory::Open(folder.path());
    ASSERT_TRUE(directory.ok()) << directory.status();
    EXPECT_EQ((*directory)->files().size(), static_cast<size_t>(num_shards));
    EXPECT_EQ((*directory)->entries().size(), 45u);
    ASSERT_NE((*directory)->Find("model.norm.weight"), nullptr);
    EXPECT_EQ((*directory)->Find("model.norm.weight")->info->size_bytes, 64u);
    EXPECT_EQ((*directory)->Find("nothing"), nullptr);
  }
}

TEST(TensorDirectoryTest, RefusesFoldersWithoutWeightsAndSaysWhatIsThere) {
  const TemporaryFolder folder;
  const absl::Status empty = TensorDirectory::Open(folder.path()).status();
  EXPECT_EQ(empty.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(empty.message()), HasSubstr("neither model.safetensors nor"));
  WriteFile(folder.File("pytorch_model.bin"), "x");
  EXPECT_THAT(HintOf(TensorDirectory::Open(folder.path()).status()),
              HasSubstr("pytorch_model.bin, which is not read"));
}

TEST(TensorDirectoryTest, RefusesIndexAndShardsThatDisagree) {
  const auto weight_map_edit = [](const std::string& tensor, const std::string& file) {
    MiniCheckpoint mini;
    mini.edit_index = [tensor, file](Json& index) {
      Json map = *index.Find("weight_map");
      map.Set(tensor, Json::String(file));
      index.Set("weight_map", map);
    };
    return mini;
  };
  EXPECT_THAT(
      std::string(OpenMini(weight_map_edit("ghost", "model-00001-of-00002.safetensors")).message()),
      HasSubstr("tensor ghost is not in model-00001-of-00002.safetensors"));
  EXPECT_THAT(
      std::string(OpenMini(weight_map_edit("zzz", "model-00001-of-00002.safetensors")).message()),
      HasSubstr("tensor zzz is not in"));
  EXPECT_THAT(std::string(OpenMini(weight_map_edit("model.embed_tokens.weight",
                                                   "model-00002-of-00002.safetensors"))
                              .message()),
              HasSubstr("is in model-00001-of-00002.safetensors, the index says"));
  EXPECT_THAT(std::string(OpenMini(weight_map_edit("ghost", "model-00003.safetensors")).message()),
              HasSubstr("model-00003.safetensors"));
  MiniCheckpoint unlisted;
  unlisted.edit_index = [](Json& index) {
    std::map<std::string, Json> map = index.Find("weight_map")->members();
    map.erase("lm_head.weight");
    index.Set("weight_map", Json::Object(map));
  };
  EXPECT_THAT(std::string(OpenMini(unlisted).message()),
              HasSubstr("lm_head.weight is in model-00001-of-00002.safetensors but the index does "
                        "not list it"));
}

TEST(TensorDirectoryTest, RefusesATensorInTwoShards) {
  const absl::Status status = OpenMini(MiniCheckpoint(), [](const TemporaryFolder& folder) {
    std::filesystem::copy_file(folder.File("model-00001-of-00002.safetensors"),
                               folder.File("model-00002-of-00002.safetensors"),
                               std::filesystem::copy_options::overwrite_existing);
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is in two shards: model-00001-of-00002.safetensors and "
                        "model-00002-of-00002.safetensors"));
}

TEST(TensorDirectoryTest, RefusesAMissingShardAndATruncatedOneByName) {
  EXPECT_THAT(std::string(OpenMini(MiniCheckpoint(),
                                   [](const TemporaryFolder& folder) {
                                     std::filesystem::remove(
                                         folder.File("model-00002-of-00002.safetensors"));
                                   })
                              .message()),
              HasSubstr("model-00002-of-00002.safetensors: no such file"));
  const absl::Status cut = OpenMini(MiniCheckpoint(), [](const TemporaryFolder& folder) {
    const std::string path = folder.File("model-00002-of-00002.safetensors");
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1000);
  });
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(cut.message()),
              HasSubstr("model-00002-of-00002.safetensors: file is cut short: expected "));
}

TEST(TensorDirectoryTest, RefusesASingleFileThatTheIndexBesideItDoesNotName) {
  const absl::Status status = OpenMini(MiniCheckpoint(), [](const TemporaryFolder& folder) {
    std::filesystem::copy_file(folder.File("model-00001-of-00002.safetensors"),
                               folder.File("model.safetensors"));
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("has both model.safetensors and"));
}

}  // namespace
}  // namespace moebius
