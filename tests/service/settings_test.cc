// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/settings.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    settings_.AddText({"First", "model", "DIR", "A folder"}, &model_);
    settings_.AddInteger({"First", "row-budget", "N", "Rows"}, 1, 100, &rows_);
    settings_.AddSwitch({"Second", "insecure", "", "No TLS"}, &insecure_);
    settings_.AddChoice({"Second", "transport", "KIND", "How"}, {"auto", "grpc"}, &transport_);
    settings_.AddList({"Second", "tls-peer", "NAME", "Who"}, &peers_);
    settings_.AddBytes({"Second", "kv-budget", "BYTES", "KV"}, &bytes_);
  }

  absl::Status Apply(const std::vector<std::string>& arguments) {
    return settings_.Apply(
        arguments,
        [this](const std::string& name) {
          const auto found = environment_.find(name);
          return found == environment_.end() ? std::nullopt : std::optional(found->second);
        },
        &requests_);
  }

  std::string WriteFile(const std::string& text) {
    const std::string path = folder_.File("config.json");
    std::ofstream(path) << text;
    return path;
  }

  TemporaryFolder folder_;
  Settings settings_;
  Settings::Requests requests_;
  std::map<std::string, std::string> environment_;
  std::string model_ = "default";
  int64_t rows_ = 1;
  bool insecure_ = false;
  std::string transport_ = "auto";
  std::vector<std::string> peers_;
  int64_t bytes_ = 0;
};

TEST_F(SettingsTest, FlagsAreStrongerThanTheEnvironmentAndThatThanAFile) {
  const std::string file = WriteFile(R"({"model": "file", "row-budget": 5, "insecure": true})");
  environment_ = {{"MOEBIUS_MODEL", "environment"}, {"MOEBIUS_ROW_BUDGET", "7"}};
  ASSERT_TRUE(Apply({"--model", "flag", "--config", file}).ok());
  EXPECT_EQ(model_, "flag");
  EXPECT_EQ(rows_, 7);
  EXPECT_TRUE(insecure_);
}

TEST_F(SettingsTest, TakesTheFileFromTheEnvironmentToo) {
  environment_ = {{"MOEBIUS_CONFIG", WriteFile(R"({"tls-peer": ["a", "b"]})")}};
  ASSERT_TRUE(Apply({}).ok());
  EXPECT_THAT(peers_, ElementsAre("a", "b"));
}

TEST_F(SettingsTest, ListsAreRepeatedFlagsOrCommasAndNeverMixed) {
  environment_ = {{"MOEBIUS_TLS_PEER", "x,y"}};
  ASSERT_TRUE(Apply({}).ok());
  EXPECT_THAT(peers_, ElementsAre("x", "y"));
  ASSERT_TRUE(Apply({"--tls-peer", "a,b", "--tls-peer=c"}).ok());
  EXPECT_THAT(peers_, ElementsAre("a,b", "c"));
}

TEST_F(SettingsTest, ReadsEveryFormOfAFlag) {
  ASSERT_TRUE(Apply({"--insecure", "--row-budget=9", "--kv-budget", "2MiB"}).ok());
  EXPECT_TRUE(insecure_);
  EXPECT_EQ(rows_, 9);
  EXPECT_EQ(bytes_, 2 << 20);
  ASSERT_TRUE(Apply({"--insecure=false", "--model="}).ok());
  EXPECT_FALSE(insecure_);
  EXPECT_EQ(model_, "");
}

TEST_F(SettingsTest, RefusesValuesWithThePlaceThatTheyCameFrom) {
  EXPECT_THAT(std::string(Apply({"--row-budget", "101"}).message()),
              HasSubstr("--row-budget is 101, not in [1, 100]"));
  EXPECT_THAT(std::string(Apply({"--transport", "pigeon"}).message()),
              HasSubstr("--transport is one of auto, grpc, not 'pigeon'"));
  environment_ = {{"MOEBIUS_ROW_BUDGET", "1e3"}};
  EXPECT_THAT(std::string(Apply({}).message()), HasSubstr("MOEBIUS_ROW_BUDGET needs an integer"));
  environment_.clear();
  const std::string file = WriteFile(R"({"insecure": "maybe"})");
  EXPECT_THAT(std::string(Apply({"--config", file}).message()),
              HasSubstr("config.json: insecure is true or false"));
  EXPECT_THAT(std::string(Apply({"--config", WriteFile(R"({"model": [1]})")}).message()),
              HasSubstr("model cannot be a list"));
}

TEST_F(SettingsTest, NamesTheNearestWordForWhatNobodyKnows) {
  EXPECT_THAT(std::string(Apply({"--row-buget", "3"}).message()),
              HasSubstr("did you mean '--row-budget'?"));
  EXPECT_THAT(std::string(Apply({"--config", WriteFile(R"({"modle": "x"})")}).message()),
              HasSubstr("did you mean 'model'?"));
  EXPECT_THAT(std::string(Apply({"serve"}).message()), HasSubstr("unexpected word 'serve'"));
  EXPECT_THAT(std::string(Apply({"--model"}).message()), HasSubstr("--model needs a value"));
}

TEST_F(SettingsTest, AMissingFileIsNotFoundAndABrokenOneRefused) {
  EXPECT_EQ(Apply({"--config", folder_.File("none")}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Apply({"--config", WriteFile("{")}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Apply({"--config", WriteFile("[]")}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(requests_.is_file_wrong);
  EXPECT_FALSE(Apply({"--config", WriteFile("{}"), "--row-budget", "0"}).ok());
  EXPECT_FALSE(requests_.is_file_wrong);
}

TEST_F(SettingsTest, WhatItPrintsReadsBackTheSame) {
  ASSERT_TRUE(
      Apply({"--insecure", "--row-budget=9", "--tls-peer=a", "--tls-peer=b,c", "--kv-budget=1K"})
          .ok());
  const std::string printed = settings_.ToJson();
  ASSERT_TRUE(Apply({"--insecure=0", "--row-budget=1", "--tls-peer=z", "--kv-budget=0"}).ok());
  ASSERT_TRUE(Apply({"--config", WriteFile(printed)}).ok());
  EXPECT_EQ(settings_.ToJson(), printed);
  EXPECT_THAT(peers_, ElementsAre("a", "b,c"));
}

TEST_F(SettingsTest, HelpAndVersionAreAnsweredWhateverTheFileSays) {
  ASSERT_TRUE(Apply({"--config", "nowhere", "--help"}).ok());
  EXPECT_TRUE(requests_.help);
  EXPECT_THAT(peers_, IsEmpty());
}

TEST_F(SettingsTest, HelpShowsGroupsDefaultsAndTheConfiguration) {
  const std::string help = settings_.Help();
  EXPECT_THAT(help, HasSubstr("First:\n  --model DIR"));
  EXPECT_THAT(help, HasSubstr("Rows [1]"));
  EXPECT_THAT(help, HasSubstr("--print-config"));
}

}  // namespace
}  // namespace moebius
