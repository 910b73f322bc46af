// SPDX-License-Identifier: Apache-2.0
#include "node/embedded.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/telemetry/registry.h"
#include "tests/node/expected_cases.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GenerateRequest Greedy(std::vector<int64_t> ids, int64_t max_tokens) {
  GenerateRequest request;
  request.token_ids = std::move(ids);
  request.max_tokens = max_tokens;
  return request;
}

absl::Status Refusal(EmbeddedNode& node, const GenerateRequest& request) {
  return node.Generate(request, [](const GenerateEvent&) { return true; });
}

// A reader has its last event a moment before the tables are cleared.
void WaitUntilIdle(EmbeddedNode& node) {
  while (node.usage().running_sessions > 0) std::this_thread::yield();
}

TEST(EmbeddedNodeTest, AnswersOneTokenPromptsAndRefusesNone) {
  const auto node = OpenDemo();
  EXPECT_EQ(Ask(*node, Greedy({256}, 1)).token_ids.size(), 1u);
  EXPECT_EQ(Ask(*node, Greedy({5}, 1)).token_ids.size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(*node, Greedy({}, 1))));
}

TEST(EmbeddedNodeTest, RefusesWhatCannotBeAndGoesOn) {
  const auto node = OpenDemo();
  const CaseAnswer before = Ask(*node, Greedy({256, 72}, 8));
  EXPECT_THAT(std::string(Refusal(*node, Greedy({1, 259}, 1)).message()),
              HasSubstr("token id 259 at position 1 is outside the vocabulary of 259"));
  EXPECT_THAT(std::string(Refusal(*node, Greedy(std::vector<int64_t>(17000, 1), 1)).message()),
              HasSubstr("the prompt has 17000 tokens, the limit is 16384"));
  GenerateRequest flat = Greedy({1}, 1);
  flat.top_p = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(*node, flat)));
  const CaseAnswer after = Ask(*node, Greedy({256, 72}, 8));
  EXPECT_EQ(after.logits_hash, before.logits_hash);
  WaitUntilIdle(*node);
  EXPECT_EQ(node->usage().reserved_kv_tokens, 0);
}

TEST(EmbeddedNodeTest, RefusesAPromptThatItsKvPoolCanNeverHold) {
  EmbeddedOptions options;
  options.kv_budget_bytes = int64_t{1} << 20;
  const auto node = OpenDemo(options);
  const int64_t capacity = node->info().kv_capacity_tokens;
  ASSERT_GT(capacity, 0);
  ASSERT_LT(capacity, 16000);
  const absl::Status refused =
      Refusal(*node, Greedy(std::vector<int64_t>(static_cast<size_t>(capacity + 1), 1), 1));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("KV slots, the pool has"));
  EXPECT_EQ(Ask(*node, Greedy({256, 72}, 8)).token_ids.size(), 8u);
}

TEST(EmbeddedNodeTest, StopsAtOnceWhenItsCallerSaysSo) {
  const auto node = OpenDemo();
  GenerateEvent last;
  const absl::Status status =
      node->Generate(Greedy({256, 72}, 500), [&last](const GenerateEvent& event) {
        last = event;
        return event.completion_tokens < 5;
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(last.finish_reason, FinishReason::kAbort);
  EXPECT_GE(last.completion_tokens, 5);
  EXPECT_LT(last.completion_tokens, 400);
}

TEST(EmbeddedNodeTest, EndsOpenStreamsAtItsEnd) {
  auto node = OpenDemo();
  const auto stream = *node->Submit(Greedy({256, 72}, 2000));
  node.reset();
  while (stream->Next().has_value()) {
  }
  EXPECT_TRUE(absl::IsUnavailable(stream->status()));
}

TEST(EmbeddedNodeTest, GivesTeacherForcedTheLogitsThatItSamplesFrom) {
  const auto node = OpenDemo();
  const ExpectedCase expected = FindExpectedCase("greedy");
  const absl::StatusOr<ForcedLogits> forced = node->TeacherForced(expected.request.token_ids);
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_EQ(forced->num_tokens, static_cast<int64_t>(expected.request.token_ids.size()));
  EXPECT_EQ(forced->layers.size(), 5u);
  const auto last = FloatRows(forced->logits.rows()).span(forced->num_tokens - 1);
  const auto best = std::max_element(last.begin(), last.end()) - last.begin();
  EXPECT_EQ(best, expected.token_ids[0]);
  // A prompt's first token has the hash of that one row.
  const CaseAnswer one = Ask(*node, Greedy(expected.request.token_ids, 1));
  EXPECT_EQ(one.logits_hash, FormatHash64(Hash64(last.data(), last.size() * sizeof(float))));
}

TEST(EmbeddedNodeTest, KeepsTheRowsThatTeacherForcedIsAskedFor) {
  EmbeddedOptions options;
  options.chunk_rows = 5;
  const auto node = OpenDemo(options);
  const std::vector<int64_t> ids = FindExpectedCase("greedy").request.token_ids;
  const absl::StatusOr<ForcedLogits> all = node->TeacherForced(ids);
  const absl::StatusOr<ForcedLogits> some = node->TeacherForced(ids, {3, 11, 25});
  ASSERT_TRUE(all.ok() && some.ok());
  ASSERT_EQ(some->logits.num_rows(), 3);
  for (size_t index = 0; index < 3; ++index) {
    const auto kept = FloatRows(some->logits.rows()).span(static_cast<int64_t>(index));
    const auto same = FloatRows(all->logits.rows()).span(some->rows[index]);
    EXPECT_TRUE(std::equal(kept.begin(), kept.end(), same.begin()));
  }
  for (const ForcedLayer& layer : all->layers) {
    for (size_t at = 0; at + 1 < layer.experts.size(); ++at) {
      if (at % 4 != 3) {
        EXPECT_LT(layer.experts[at], layer.experts[at + 1]);
      }
    }
  }
  EXPECT_FALSE(node->TeacherForced(ids, {3, 3}).ok());
  EXPECT_FALSE(node->TeacherForced(ids, {26}).ok());
  EXPECT_FALSE(node->TeacherForced({}).ok());
  EXPECT_FALSE(node->TeacherForced({300}).ok());
}

TEST(EmbeddedNodeTest, SaysWhyItCannotOpen) {
  EmbeddedOptions options;
  options.model_path = "/nonexistent/model";
  const auto missing = EmbeddedNode::Open(options);
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nonexistent/model"));
  options.model_path = DemoFolder();
  options.kv_budget_bytes = int64_t{1} << 50;
  const auto large = EmbeddedNode::Open(options);
  EXPECT_TRUE(absl::IsResourceExhausted(large.status()));
  EXPECT_THAT(HintOf(large.status()), HasSubstr("--kv-budget"));
}

TEST(EmbeddedNodeTest, ReportsLoadingFromNothingToAll) {
  EmbeddedOptions options;
  std::vector<LoadProgress> seen;
  options.on_load = [&seen](const LoadProgress& progress) { seen.push_back(progress); };
  const auto node = OpenDemo(options);
  ASSERT_GE(seen.size(), 3u);
  for (size_t index = 0; index + 1 < seen.size(); ++index) {
    EXPECT_LE(seen[index].loaded_bytes, seen[index + 1].loaded_bytes);
  }
  EXPECT_EQ(seen.back().loaded_bytes, seen.back().total_bytes);
}

TEST(EmbeddedNodeTest, OpensThreeTimesInOneProcessAndTwiceAtOnce) {
  const CaseAnswer first = Ask(*OpenDemo(), Greedy({256, 72}, 4));
  EXPECT_EQ(Ask(*OpenDemo(), Greedy({256, 72}, 4)).logits_hash, first.logits_hash);
  const auto left = OpenDemo();
  const auto right = OpenDemo();
  EXPECT_EQ(Ask(*left, Greedy({256, 72}, 4)).logits_hash, first.logits_hash);
  EXPECT_EQ(Ask(*right, Greedy({256, 72}, 4)).logits_hash, first.logits_hash);
}

TEST(EmbeddedNodeTest, WritesTheMetricsOfARouter) {
  const auto node = OpenDemo();
  Registry registry;
  const Registry::Handle handle = registry.AddCollector(
      [&](MetricWriter& writer) { node->WriteMetrics(ExpertDetail::kOff, writer); });
  EXPECT_THAT(registry.Scrape(), HasSubstr("\nmoebius_generated_tokens_total 0\n"));
  Ask(*node, Greedy({256, 72}, 4));
  WaitUntilIdle(*node);
  const std::string scrape = registry.Scrape();
  EXPECT_THAT(scrape, HasSubstr("\nmoebius_prompt_tokens_total 2\n"));
  EXPECT_THAT(scrape, HasSubstr("\nmoebius_generated_tokens_total 4\n"));
  EXPECT_THAT(scrape, Not(HasSubstr("\nmoebius_expert_assignments_total{")));
}

}  // namespace
}  // namespace moebius
