// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/plan_attention_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/exit_code.h"
#include "moebius/model/json.h"
#include "moebius/model/random_checkpoint.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

struct Printed {
  int code = 0;
  std::string out, err;
};

Printed RunPlan(std::vector<std::string> flags) {
  std::vector<std::string> words = {"plan", "attention"};
  words.insert(words.end(), flags.begin(), flags.end());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Printed printed;
  printed.code = RunCommandLine(words);
  std::fflush(stdout);
  printed.out = ::testing::internal::GetCapturedStdout();
  printed.err = ::testing::internal::GetCapturedStderr();
  return printed;
}

// The published cluster: four ranks, Llama 3 405B's heads on one of eight slices.
std::vector<std::string> Llama(const std::string& new_tokens, const std::string& cached_tokens) {
  return {"--query-heads",   "16",          "--kv-heads",     "1",
          "--head-dim",      "128",         "--value-dim",    "128",
          "--new-tokens",    new_tokens,    "--ranks",        "4",
          "--flops",         "510e12",      "--bandwidth",    "26000000000.0",
          "--bytes",         "2",           "--return-bytes", "2",
          "--cached-tokens", cached_tokens, "--json"};
}

double NumberOf(const Json& json) {
  return json.kind() == Json::Kind::kInteger ? static_cast<double>(json.integer()) : json.number();
}

TEST(PlanAttentionTest, PrintsTheChoiceAndEveryMethodAsOneObject) {
  const Printed printed = RunPlan(Llama("1280", "126720"));
  ASSERT_EQ(printed.code, kExitOk) << printed.err;
  const auto json = Json::Parse(printed.out, "plan");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->Find("choice")->string(), "ring-pass-q");
  EXPECT_EQ(json->Find("attention_sum")->string(), "per-degree");
  EXPECT_EQ(json->Find("attention_layout")->string(), "zigzag");
  EXPECT_THAT(json->Find("reason")->string(), HasSubstr("on 4 ranks"));
  const Json& methods = *json->Find("methods");
  EXPECT_EQ(methods.members().size(), 6u);
  for (const auto& [name, method] : methods.members()) {
    for (const char* field : {"seconds", "bytes", "exposed_seconds", "memory_bytes", "ranks"}) {
      ASSERT_NE(method.Find(field), nullptr) << name << " " << field;
      EXPECT_TRUE(std::isfinite(NumberOf(*method.Find(field))));
    }
  }
  EXPECT_EQ(NumberOf(*methods.Find("ring-pass-kv")->Find("bytes")),
            0.75 * 2 * 128000 * 1 * 128 * 2);
  EXPECT_EQ(methods.Find("local")->Find("ranks")->integer(), 1);
  const auto full = Json::Parse(RunPlan(Llama("128000", "0")).out, "plan");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->Find("choice")->string(), "ring-pass-kv");
}

TEST(PlanAttentionTest, SaysInWordsWhyAShortPromptStaysOnOneRank) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.path(), {}).ok());
  const Printed printed = RunPlan({"--model", folder.path(), "--context", "64", "--ranks", "4",
                                   "--flops", "1e11", "--bandwidth", "1e9", "--latency", "1e-4"});
  ASSERT_EQ(printed.code, kExitOk) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("too little work to share"));
  EXPECT_THAT(printed.out, HasSubstr("canonical sum"));
}

TEST(PlanAttentionTest, TakesAWindowOfTheFlagOrTheModel) {
  const std::vector<std::string> rates = {"--ranks", "2",           "--context", "4096",  "--flops",
                                          "1e11",    "--bandwidth", "1e9",       "--json"};
  const auto plan = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), rates.begin(), rates.end());
    return *Json::Parse(RunPlan(flags).out, "plan");
  };
  const auto bytes = [](const Json& json) {
    return NumberOf(*json.Find("methods")->Find("ring-pass-kv")->Find("bytes"));
  };
  const Json all = plan({"--query-heads", "2"});
  const Json window = plan({"--query-heads", "2", "--window", "128"});
  EXPECT_EQ(window.Find("inputs")->Find("window")->integer(), 128);
  // Rows of spans 1 and 3 are the first of a rank that see into the other's span.
  EXPECT_EQ(bytes(all), 2048 * 1024.0);
  EXPECT_EQ(bytes(window), 1024 * 1024.0);
  EXPECT_LT(NumberOf(*window.Find("methods")->Find("local")->Find("seconds")),
            0.1 * NumberOf(*all.Find("methods")->Find("local")->Find("seconds")));
  TemporaryFolder folder;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.path(), {.family = Family::kQwen3Moe}).ok());
  Json config = *Json::Parse(ReadFileBytes(folder.File("config.json")), "config");
  config.Set("sliding_window", Json::Integer(100));
  config.Set("use_sliding_window", Json::Boolean(true));
  WriteFile(folder.File("config.json"), config.ToCanonicalText());
  EXPECT_EQ(plan({"--model", folder.path()}).Find("inputs")->Find("window")->integer(), 100);
  config.Set("max_window_layers", Json::Integer(1));  // the first layer sees all
  WriteFile(folder.File("config.json"), config.ToCanonicalText());
  EXPECT_EQ(plan({"--model", folder.path()}).Find("inputs")->Find("window")->integer(), 0);
  EXPECT_EQ(RunPlan({"--query-heads", "2", "--context", "10", "--window", "-1"}).code, kExitUsage);
}

TEST(PlanAttentionTest, TakesAMaskThatIsNotCausalOfTheFlagOrTheModel) {
  const std::vector<std::string> rates = {"--ranks", "2",           "--context", "4096",  "--flops",
                                          "1e11",    "--bandwidth", "1e9",       "--json"};
  const auto plan = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), rates.begin(), rates.end());
    return *Json::Parse(RunPlan(flags).out, "plan");
  };
  const auto seconds = [](const Json& json) {
    return NumberOf(*json.Find("methods")->Find("local")->Find("seconds"));
  };
  const Json causal = plan({"--query-heads", "2"});
  const Json whole = plan({"--query-heads", "2", "--not-causal"});
  EXPECT_TRUE(causal.Find("inputs")->Find("causal")->boolean());
  EXPECT_FALSE(whole.Find("inputs")->Find("causal")->boolean());
  EXPECT_DOUBLE_EQ(seconds(whole) / seconds(causal), 2 * 4096.0 / 4097);
  TemporaryFolder folder;
  ASSERT_TRUE(WriteRandomCheckpoint(folder.path(), {.family = Family::kQwen3Moe}).ok());
  EXPECT_TRUE(plan({"--model", folder.path()}).Find("inputs")->Find("causal")->boolean());
  Json config = *Json::Parse(ReadFileBytes(folder.File("config.json")), "config");
  config.Set("is_causal", Json::Boolean(false));
  WriteFile(folder.File("config.json"), config.ToCanonicalText());
  EXPECT_FALSE(plan({"--model", folder.path()}).Find("inputs")->Find("causal")->boolean());
  const Printed refused = RunPlan({"--query-heads", "2", "--new-tokens", "8", "--cached-tokens",
                                   "8", "--not-causal", "--flops", "1e9", "--bandwidth", "1e9"});
  EXPECT_EQ(refused.code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("not causal"));
}

TEST(PlanAttentionTest, MeasuresTheKernelWhereNoRateIsGiven) {
  const Printed printed = RunPlan({"--query-heads", "2", "--head-dim", "32", "--context", "4096",
                                   "--ranks", "2", "--bandwidth", "1e9", "--json"});
  ASSERT_EQ(printed.code, kExitOk) << printed.err;
  const auto json = Json::Parse(printed.out, "plan");
  ASSERT_TRUE(json.ok());
  EXPECT_TRUE(json->Find("inputs")->Find("measured")->boolean());
  EXPECT_GT(NumberOf(*json->Find("inputs")->Find("flops")), 1e6);
}

TEST(PlanAttentionTest, RefusesFlagsThatMakeNoPlan) {
  const std::vector<std::string> heads = {"--query-heads", "16",   "--ranks",     "4",
                                          "--flops",       "1e12", "--bandwidth", "1e9"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), heads.begin(), heads.end());
    return RunPlan(more);
  };
  EXPECT_EQ(with({}).code, kExitUsage);
  EXPECT_THAT(with({"--context", "10", "--new-tokens", "4", "--cached-tokens", "7"}).err,
              HasSubstr("a context of 10 tokens"));
  EXPECT_EQ(with({"--context", "10", "--kv-heads", "3"}).code, kExitUsage);
  EXPECT_EQ(with({"--context", "10", "--attention-sum", "ring"}).code, kExitUsage);
  EXPECT_EQ(
      with({"--context", "10", "--attention-sum", "per-degree", "--attention-layout", "x"}).code,
      kExitUsage);
  EXPECT_THAT(with({"--context", "10", "--attention-layout", "striped"}).err,
              HasSubstr("the layout striped is of the per-degree sum"));
  EXPECT_EQ(with({"--context", "10", "--flops", "-1"}).code, kExitUsage);
  EXPECT_EQ(with({"--context", "10", "--attention-sum", "canonical", "--return-bytes", "2"}).code,
            kExitUsage);
  EXPECT_EQ(RunPlan({"--ranks", "4", "--context", "10"}).code, kExitUsage);
}

}  // namespace
}  // namespace moebius
