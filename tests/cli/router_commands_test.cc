// SPDX-License-Identifier: Apache-2.0
// The commands that ask a router, against one in this process, as a person types them.
#include <cstdio>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/model/json.h"
#include "tests/node/expected_cases.h"
#include "tests/rpc/router_world.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Output {
  int code = 0;
  std::string out;
  std::string err;

  Json json() const {
    const auto parsed = Json::Parse(out, "stdout");
    EXPECT_TRUE(parsed.ok()) << out << err;
    return parsed.ok() ? *parsed : Json();
  }
};

Output Moebius(const std::vector<std::string>& words) {
  Output run;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  run.code = RunCommandLine(words);
  std::fflush(stdout);
  run.out = testing::internal::GetCapturedStdout();
  run.err = testing::internal::GetCapturedStderr();
  return run;
}

class RouterCommandsTest : public testing::Test {
 protected:
  RouterCommandsTest() : node_(OpenDemo()), world_(node_->front()) {}

  // The command with --router behind it.
  Output AskRouter(std::vector<std::string> words) const {
    words.push_back("--router");
    words.push_back(world_.target());
    return Moebius(words);
  }

  std::unique_ptr<EmbeddedNode> node_;
  RouterWorld world_;
};

const char kPrompt[] = "And the king said to them";

TEST_F(RouterCommandsTest, GenerateSaysTheSameOfARouterAndOfAModel) {
  const std::vector<std::string> words = {"generate", "--prompt", kPrompt,  "--max-tokens",  "12",
                                          "--seed",   "7",        "--json", "--temperature", "0.8"};
  std::vector<std::string> local = words;
  local.insert(local.end(), {"--model", DemoFolder()});
  const Json here = Moebius(local).json();
  const Json there = AskRouter(words).json();
  ASSERT_EQ(here.members().size(), there.members().size());
  for (const auto& [name, value] : here.members()) {
    if (name == "request_id" || name == "timing") continue;
    EXPECT_EQ(value, *there.Find(name)) << name;
  }
}

TEST_F(RouterCommandsTest, GenerateWritesTextAndFigures) {
  const Output run = AskRouter({"generate", "--prompt", kPrompt, "--max-tokens", "6", "--verbose"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_FALSE(run.out.empty());
  EXPECT_THAT(run.err, HasSubstr("26 + 6 tokens"));
  EXPECT_THAT(run.err, HasSubstr("attention"));
  EXPECT_THAT(run.err, HasSubstr("reproduce: moebius generate --router " + world_.target()));
}

TEST_F(RouterCommandsTest, GenerateRefusesWhatARouterHasDecided) {
  const Output run = AskRouter({"generate", "--prompt", "x", "--tier", "avx2"});
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("--tier cannot be given with --router"));
}

TEST_F(RouterCommandsTest, GenerateShowsTheRoutersRefusalWithItsHint) {
  const Output run = AskRouter({"generate", "--prompt-ids", "1,99999", "--json"});
  EXPECT_EQ(run.code, 1);
  const auto error = Json::Parse(run.err, "stderr");
  ASSERT_TRUE(error.ok()) << run.err;
  EXPECT_EQ(error->Find("code")->string(), "INVALID_ARGUMENT");
  EXPECT_THAT(error->Find("hint")->string(), HasSubstr("ids run from 0"));
}

TEST_F(RouterCommandsTest, RouteSaysTheSameOfARouterAndOfAModel) {
  const std::vector<std::string> words = {"route", "--prompt",  kPrompt, "--layer",
                                          "3",     "--experts", "4",     "--json"};
  std::vector<std::string> local = words;
  local.insert(local.end(), {"--model", DemoFolder()});
  EXPECT_EQ(Moebius(local).out, AskRouter(words).out);
  const Json route = AskRouter(words).json();
  int64_t rows = 0;
  for (const Json& sent : route.Find("rows_sent")->elements()) rows += sent.integer();
  const int64_t row_bytes = node_->config().hidden_size * 2;
  EXPECT_EQ(route.Find("bytes")->Find("out")->integer(), rows * row_bytes);
  EXPECT_EQ(route.Find("naive_bytes")->Find("out")->integer(),
            26 * node_->config().gate.top_k * row_bytes);
}

TEST_F(RouterCommandsTest, RouteDrawsAPicture) {
  const Output run = AskRouter({"route", "--prompt", kPrompt, "--layer", "3", "--experts", "4"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("layer 3 of 6   26 tokens"));
  EXPECT_THAT(run.out, HasSubstr("rows sent     expert-0"));
}

TEST_F(RouterCommandsTest, ExpertsShowsWhatWasServed) {
  EXPECT_THAT(AskRouter({"experts"}).out, HasSubstr("no tokens yet"));
  ASSERT_EQ(AskRouter({"generate", "--prompt", kPrompt, "--max-tokens", "4", "--quiet"}).code, 0);
  EXPECT_THAT(AskRouter({"experts"}).out, HasSubstr("layer 1"));
  const Json load = AskRouter({"experts", "--json"}).json();
  int64_t demand = 0;
  for (const Json& expert : load.Find("demand")->elements()[0].elements()) {
    demand += expert.integer();
  }
  EXPECT_EQ(demand, (26 + 4 - 1) * node_->config().gate.top_k);
}

TEST_F(RouterCommandsTest, StatusHealthAndWaitSayThatItIsReady) {
  EXPECT_THAT(AskRouter({"status", "--limits"}).out, HasSubstr("max_forward_rows"));
  EXPECT_EQ(AskRouter({"status", "--json"}).json().Find("ready")->boolean(), true);
  const Output health = AskRouter({"health"});
  EXPECT_EQ(health.code, 0);
  EXPECT_EQ(health.out, "serving\n");
  const Output wait = AskRouter({"wait", "--timeout", "20s", "--json"});
  EXPECT_EQ(wait.code, 0);
  EXPECT_EQ(wait.json().Find("ready")->boolean(), true);
}

TEST_F(RouterCommandsTest, ExplainKnowsARequestByItsId) {
  ASSERT_EQ(AskRouter({"generate", "--prompt", kPrompt, "--max-tokens", "4", "--request-id",
                       "chat-17", "--quiet"})
                .code,
            0);
  EXPECT_THAT(AskRouter({"explain", "chat-17"}).out, StartsWith("chat-17   finished"));
  EXPECT_EQ(AskRouter({"explain", "chat-17", "--json"}).json().Find("completion_tokens")->integer(),
            4);
  const Output unknown = AskRouter({"explain", "chat-18"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("'chat-18'"));
}

TEST(RouterCommandsWithoutARouterTest, WaitSaysWhatIsMissingWhenTimeIsUp) {
  const Output run = Moebius({"wait", "--router", "127.0.0.1:1", "--timeout", "200ms"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.out, HasSubstr("not ready after"));
  EXPECT_THAT(run.out, HasSubstr("127.0.0.1:1"));
}

TEST(RouterCommandsWithoutARouterTest, TellHowToNameOne) {
  for (const char* command : {"status", "health", "wait"}) {
    const Output run = Moebius({command});
    EXPECT_EQ(run.code, 2) << command;
    EXPECT_THAT(run.err, HasSubstr("--router HOST:PORT")) << command;
  }
  EXPECT_EQ(Moebius({"generate", "--prompt", "x"}).code, 2);
}

TEST(RouterCommandsWithoutARouterTest, EndWithOneWhereNobodyAnswers) {
  const Output run = Moebius({"generate", "--router", "127.0.0.1:1", "--prompt", "x"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("cannot reach a router at 127.0.0.1:1"));
}

}  // namespace
}  // namespace moebius
