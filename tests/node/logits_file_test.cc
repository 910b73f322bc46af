// SPDX-License-Identifier: Apache-2.0
#include "node/logits_file.h"

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/model/safetensors.h"

namespace moebius {
namespace {

using testing::HasSubstr;

// Three tokens, four ids, layers 2 and 10, two experts a token.
ForcedLogits SmallForced() {
  ForcedLogits forced;
  forced.num_tokens = 3;
  forced.num_experts = 8;
  forced.top_k = 2;
  forced.rows = {0, 1, 2};
  forced.logits.Reset(3, 4);
  for (int64_t i = 0; i < 12; ++i) forced.logits.rows().data[i] = static_cast<float>(i) + 0.25f;
  for (const int64_t layer : {2, 10}) {
    ForcedLayer kept;
    kept.layer = layer;
    for (int16_t i = 0; i < 6; ++i) {
      kept.experts.push_back(static_cast<int16_t>(layer + i));
      kept.weights.push_back(static_cast<float>(layer) + static_cast<float>(i) / 8);
    }
    forced.layers.push_back(kept);
  }
  return forced;
}

std::string TestPath(const std::string& name) { return testing::TempDir() + "/" + name; }

TEST(LogitsFileTest, ReadsBackWhatItWrote) {
  const ForcedLogits forced = SmallForced();
  const std::string path = TestPath("logits_file_round_trip.safetensors");
  ASSERT_TRUE(WriteLogitsFile(forced, path).ok());
  const auto read = ReadLogitsFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->num_tokens, 3);
  EXPECT_EQ(read->top_k, 2);
  EXPECT_EQ(read->rows, forced.rows);
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(read->logits.rows().span(row), forced.logits.rows().span(row));
  }
  ASSERT_EQ(read->layers.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read->layers[i].layer, forced.layers[i].layer);
    EXPECT_EQ(read->layers[i].experts, forced.layers[i].experts);
    EXPECT_EQ(read->layers[i].weights, forced.layers[i].weights);
  }
}

TEST(LogitsFileTest, HasTheNamesTypesAndShapesThatScriptsRelyOn) {
  const std::string path = TestPath("logits_file_names.safetensors");
  ASSERT_TRUE(WriteLogitsFile(SmallForced(), path).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> found;
  for (const TensorInfo& tensor : (*file)->tensors()) {
    found.push_back(tensor.name + " " + tensor.dtype_name + " " + tensor.ShapeText());
  }
  EXPECT_THAT(found, testing::UnorderedElementsAre("logits F32 [3, 4]", "layer2.experts I16 [3, 2]",
                                                   "layer2.weights F32 [3, 2]",
                                                   "layer10.experts I16 [3, 2]",
                                                   "layer10.weights F32 [3, 2]"));
}

TEST(LogitsFileTest, RefusesToWriteTheLogitsOfSomeTokensOnly) {
  ForcedLogits forced = SmallForced();
  forced.rows = {1};
  forced.logits.Reset(1, 4);
  const absl::Status status = WriteLogitsFile(forced, TestPath("logits_file_partial.safetensors"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::ifstream(TestPath("logits_file_partial.safetensors")).good());
}

TEST(LogitsFileTest, RefusesAFileOfOtherTensors) {
  const auto read = ReadLogitsFile(std::string(MOEBIUS_SOURCE_DIR) +
                                   "/tests/golden/data/olmoe/model.safetensors");
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(read.status().ToString(), HasSubstr("'logits' is missing"));
}

}  // namespace
}  // namespace moebius
