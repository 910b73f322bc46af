// SPDX-License-Identifier: Apache-2.0
#include "tests/node/expected_cases.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/base/check.h"
#include "moebius/base/hash.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kBos = 256;

Json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path);
  MOEBIUS_CHECK(text.ok());
  absl::StatusOr<Json> json = Json::Parse(*text, path);
  MOEBIUS_CHECK(json.ok());
  return *std::move(json);
}

double NumberOf(const Json& json) {
  return json.kind() == Json::Kind::kInteger ? static_cast<double>(json.integer()) : json.number();
}

ExpectedCase ParseCase(const Json& json) {
  ExpectedCase expected;
  expected.name = json.Find("name")->string();
  std::string prompt;
  if (const Json* file = json.Find("prompt_file")) {
    const auto text = ReadTextFile(absl::StrCat(DemoFolder(), "/", file->string()));
    MOEBIUS_CHECK(text.ok());
    prompt = *text;
  } else {
    prompt = json.Find("prompt")->string();
  }
  GenerateRequest& request = expected.request;
  request.token_ids.push_back(kBos);
  for (const char byte : prompt) request.token_ids.push_back(static_cast<uint8_t>(byte));
  request.max_tokens = json.Find("max_tokens")->integer();
  request.temperature = NumberOf(*json.Find("temperature"));
  request.top_p = NumberOf(*json.Find("top_p"));
  request.seed = static_cast<uint64_t>(json.Find("seed")->integer());
  for (const Json& id : json.Find("token_ids")->elements()) {
    expected.token_ids.push_back(id.integer());
  }
  expected.logits_hash = json.Find("logits_hash")->string();
  return expected;
}

}  // namespace

std::string DemoFolder() { return absl::StrCat(MOEBIUS_SOURCE_DIR, "/models/demo"); }

std::vector<ExpectedCase> ReadExpectedCases() {
  std::vector<ExpectedCase> cases;
  const Json json = ReadJson(DemoFolder() + "/expected.json");
  for (const Json& element : json.Find("cases")->elements()) cases.push_back(ParseCase(element));
  return cases;
}

ExpectedCase FindExpectedCase(const std::string& name) {
  for (ExpectedCase& expected : ReadExpectedCases()) {
    if (expected.name == name) return std::move(expected);
  }
  internal::CheckFailed(__FILE__, __LINE__, "expected.json has no case " + name);
}

std::string ExpectedConfigHash() {
  return ReadJson(DemoFolder() + "/expected.json").Find("config_hash")->string();
}

CaseAnswer Ask(EmbeddedNode& node, const GenerateRequest& request) {
  CaseAnswer answer;
  const absl::Status status = node.Generate(request, [&answer](const GenerateEvent& event) {
    answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    answer.logits_hash = event.logits_hash;
    answer.tokens_hash = event.tokens_hash;
    answer.exact = event.exactness.exact();
    answer.exactness = event.exactness;
    return true;
  });
  EXPECT_TRUE(status.ok()) << status;
  return answer;
}

void ExpectSameBits(EmbeddedNode& node, const ExpectedCase& expected) {
  const CaseAnswer answer = Ask(node, expected.request);
  EXPECT_EQ(answer.token_ids, expected.token_ids) << expected.name;
  EXPECT_EQ(answer.logits_hash, expected.logits_hash) << expected.name;
  EXPECT_TRUE(answer.exact) << expected.name;
}

std::unique_ptr<EmbeddedNode> OpenDemo(const EmbeddedOptions& options) {
  EmbeddedOptions demo = options;
  if (demo.model_path.empty()) demo.model_path = DemoFolder();
  if (demo.kv_budget_bytes == 0) demo.kv_budget_bytes = int64_t{64} << 20;
  absl::StatusOr<std::unique_ptr<EmbeddedNode>> node = EmbeddedNode::Open(demo);
  if (!node.ok()) internal::CheckFailed(__FILE__, __LINE__, node.status().ToString());
  return *std::move(node);
}

}  // namespace moebius
