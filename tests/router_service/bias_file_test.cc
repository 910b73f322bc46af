// SPDX-License-Identifier: Apache-2.0
#include "router_service/bias_file.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

BiasTable Table() {
  BiasTable table;
  table.model_hash = "0123456789abcdef";
  table.version = 12;
  // Values that no decimal of few digits has, a whole one, the least and a negative zero.
  table.layers = {{1, {}, {0.1f, -1.0f / 3, 2, 1e-45f}, 0, 0, 0},
                  {3, {}, {-0.0f, 0.5f, 1.17549435e-38f, 3.4e38f}, 0, 0, 0}};
  return table;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(BiasFileTest, ReadsBackTheSameBits) {
  const absl::StatusOr<BiasTable> again = ParseBiasFile(FormatBiasFile(Table()), "biases");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->model_hash, "0123456789abcdef");
  EXPECT_EQ(again->version, 12u);
  ASSERT_THAT(again->layers, SizeIs(2));
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(again->layers[layer].layer, Table().layers[layer].layer);
    ASSERT_THAT(again->layers[layer].bias, SizeIs(4));
    for (size_t expert = 0; expert < 4; ++expert) {
      EXPECT_EQ(again->layers[layer].bias[expert], Table().layers[layer].bias[expert]);
    }
  }
}

TEST(BiasFileTest, EveryDamageIsSeen) {
  const std::string text = FormatBiasFile(Table());
  // Any digit of a number turned into another, and any cut.
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9') continue;
    std::string damaged = text;
    damaged[at] = text[at] == '1' ? '2' : '1';
    const absl::StatusOr<BiasTable> read = ParseBiasFile(damaged, "biases");
    // A last digit may be another way to write the same number: that is no damage.
    if (read.ok()) EXPECT_EQ(FormatBiasFile(*read), text) << at;
  }
  for (size_t size = 0; size + 1 < text.size(); size += 7) {
    EXPECT_FALSE(ParseBiasFile(text.substr(0, size), "biases").ok()) << size;
  }
}

TEST(BiasFileTest, NamesWhatIsMissingOrWrong) {
  const auto message = [](const char* text) {
    return std::string(ParseBiasFile(text, "biases.json").status().message());
  };
  EXPECT_THAT(message("[]"), HasSubstr("biases.json: no object"));
  EXPECT_THAT(message(R"({"format": 1})"), HasSubstr("is absent"));
  EXPECT_THAT(message(R"({"format": 2, "model_hash": "", "version": 1, "layers": [],
                          "checksum": ""})"),
              HasSubstr("format 2; this program reads 1"));
  EXPECT_THAT(message(R"({"format": 1, "model_hash": "", "version": 1, "layers": [],
                          "checksum": "0"})"),
              HasSubstr("its checksum is "));
}

TEST(BiasFileTest, ReplacesAFileAsAWholeAndLeavesNothingBeside) {
  TemporaryFolder folder;
  const std::string path = folder.File("biases.json");
  EXPECT_TRUE(absl::IsNotFound(ReadBiasFile(path).status()));
  std::ofstream(path + ".new") << "what an interrupted write has left";
  ASSERT_TRUE(WriteBiasFile(path, Table()).ok());
  EXPECT_EQ(ReadBiasFile(path)->version, 12u);
  BiasTable later = Table();
  later.version = 13;
  ASSERT_TRUE(WriteBiasFile(path, later).ok());
  EXPECT_EQ(ReadText(path), FormatBiasFile(later));
  EXPECT_FALSE(std::ifstream(path + ".new").good());
}

class KeptBiasesTest : public testing::Test {
 protected:
  std::unique_ptr<BiasControl> Control() {
    GateConfig gate;
    gate.num_experts = 4;
    gate.top_k = 2;
    gate.score_function = ScoreFunction::kSigmoid;
    BiasControlOptions options;
    options.mode = BiasMode::kOn;
    options.balancer.gamma = 0.25f;
    return std::make_unique<BiasControl>(options, gate,
                                         std::vector<std::vector<float>>{{0, 0, 0, 0}}, "model");
  }
  std::unique_ptr<BiasFile> Keep(const std::string& path, BiasControl& control) {
    return std::make_unique<BiasFile>(
        path, &control, [this](const std::string& notice) { notices_.push_back(notice); });
  }

  TemporaryFolder folder_;
  std::vector<std::string> notices_;
};

TEST_F(KeptBiasesTest, OutliveTheirProcess) {
  const std::string path = folder_.File("biases.json");
  const auto first = Control();
  const auto file = Keep(path, *first);
  ASSERT_TRUE(file->Restore().ok()) << "no file yet is no failure";
  file->SaveIfChanged();
  EXPECT_FALSE(std::ifstream(path).good()) << "nothing has changed: nothing is written";
  BiasUpdate update;
  update.set.push_back({0, {0.5f, 0, -0.125f, 0}, {}});
  ASSERT_TRUE(first->Update(update).ok());
  file->SaveIfChanged();
  const auto second = Control();
  ASSERT_TRUE(Keep(path, *second)->Restore().ok());
  EXPECT_THAT(second->Current()->layers[0], ElementsAre(0.5f, 0, -0.125f, 0));
  EXPECT_EQ(second->version(), 1u);
  EXPECT_THAT(notices_, testing::IsEmpty());
}

TEST_F(KeptBiasesTest, AFileThatCannotBeReadStopsTheStart) {
  const std::string path = folder_.File("biases.json");
  std::ofstream(path) << "{";
  const auto control = Control();
  EXPECT_FALSE(Keep(path, *control)->Restore().ok());
  EXPECT_EQ(control->version(), 0u);
}

TEST_F(KeptBiasesTest, AFailedWriteIsCountedEachTimeAndToldOnce) {
  const auto control = Control();
  const auto file = Keep(folder_.File("no/such/folder/biases.json"), *control);
  BiasUpdate reset;
  reset.reset = true;
  ASSERT_TRUE(control->Update(reset).ok());
  file->SaveIfChanged();
  file->SaveIfChanged();
  EXPECT_EQ(file->num_failures(), 2);
  ASSERT_THAT(notices_, SizeIs(1));
  EXPECT_THAT(notices_[0], HasSubstr("biases are not kept: "));
}

}  // namespace
}  // namespace moebius
