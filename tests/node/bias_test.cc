// SPDX-License-Identifier: Apache-2.0
// The bias balancer in a whole node: a shadow changes nothing, biases in force are told.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/node/expected_cases.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

EmbeddedOptions Balanced(BiasMode mode, int64_t window = 1) {
  EmbeddedOptions options;
  options.biases.mode = mode;
  options.biases.window = window;  // one assignment per expert: a prompt moves the biases
  options.biases.balancer.gamma = 0.05f;
  return options;
}

TEST(NodeBiasTest, AShadowTellsWhatItWouldChangeAndChangesNoBit) {
  const auto node = OpenDemo(Balanced(BiasMode::kShadow));
  for (int i = 0; i < 3; ++i) ExpectSameBits(*node, FindExpectedCase("short"));
  const BiasTable table = node->front().biases();
  EXPECT_EQ(table.mode, "shadow");
  EXPECT_GT(table.version, 0u);
  ASSERT_EQ(table.layers.size(), 5u);
  double changed = 0;
  for (const LayerBias& layer : table.layers) {
    EXPECT_GT(layer.max_delta, 0);
    EXPECT_LE(layer.max_delta, table.limit);
    changed += layer.changed_ratio;
  }
  EXPECT_GT(changed, 0);
  EXPECT_EQ(node->counters().degraded_bias, 0);
}

TEST(NodeBiasTest, BiasesInForceAreToldInEveryAnswer) {
  const auto node = OpenDemo(Balanced(BiasMode::kOn));
  const ExpectedCase expected = FindExpectedCase("short");
  Ask(*node, expected.request);
  const CaseAnswer answer = Ask(*node, expected.request);
  EXPECT_TRUE(answer.exactness.bias_override);
  ASSERT_EQ(answer.exactness.reasons.size(), 1u);
  EXPECT_THAT(answer.exactness.reasons[0], HasSubstr("the balancer's biases, version "));
  EXPECT_NE(answer.logits_hash, expected.logits_hash) << "moved biases choose other experts";
  EXPECT_EQ(node->counters().degraded_bias, 2);
}

TEST(NodeBiasTest, ResetGivesTheRecordedBitsAgain) {
  const auto node = OpenDemo(Balanced(BiasMode::kOn, 0));
  const ExpectedCase expected = FindExpectedCase("short");
  BiasUpdate update;
  BiasUpdate::Layer& layer = update.set.emplace_back();
  const BiasTable before = node->front().biases();
  layer.layer = before.layers[2].layer;
  layer.bias = before.layers[2].base;
  layer.bias[3] += 0.5f;
  ASSERT_TRUE(node->front().UpdateBias(update).ok());
  EXPECT_NE(Ask(*node, expected.request).logits_hash, expected.logits_hash);
  BiasUpdate reset;
  reset.reset = true;
  EXPECT_EQ(*node->front().UpdateBias(reset), 2u);
  const CaseAnswer answer = Ask(*node, expected.request);
  EXPECT_EQ(answer.logits_hash, expected.logits_hash);
  EXPECT_FALSE(answer.exact) << "the balancer is on: the answer says so all the same";
}

TEST(NodeBiasTest, ADryRunShowsTheBiasesInForceAndMovesNone) {
  const auto node = OpenDemo(Balanced(BiasMode::kOn, 0));
  RouteRequest request;
  request.token_ids = FindExpectedCase("short").request.token_ids;
  request.layer = 3;
  const auto before = node->front().Route(request, absl::Seconds(60));
  ASSERT_TRUE(before.ok()) << before.status();
  BiasUpdate update;
  BiasUpdate::Layer& layer = update.set.emplace_back();
  layer.layer = 3;
  layer.bias = node->front().biases().layers[2].base;
  ASSERT_EQ(node->front().biases().layers[2].layer, 3);
  for (size_t expert = 0; expert < 8; ++expert) layer.bias[expert] -= 0.5f;  // the first group
  ASSERT_TRUE(node->front().UpdateBias(update).ok());
  const auto after = node->front().Route(request, absl::Seconds(60));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE(after->expert_ids, before->expert_ids);
  EXPECT_EQ(node->front().biases().version, 1u);
  EXPECT_EQ(node->front().biases().observed, 0);
}

}  // namespace
}  // namespace moebius
