// SPDX-License-Identifier: Apache-2.0
// What a generated token of a cluster allocates, all processes' parts together: what messages are
// made of, and nothing for rows, plans or sums.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"

#include "tests/cluster/cluster_fixture.h"
#include "tests/support/counting_allocator.h"

namespace moebius {
namespace {

constexpr int kTokens = 200;
// A question and its answer: the bytes of both, the reservation, what the link makes of them.
constexpr double kMaxPerQuestion = 10;

TEST(ClusterStepAllocationTest, AStepAllocatesForItsMessagesOnly) {
  const auto cluster = LocalCluster::Make(DemoCluster(2, 1));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  GenerateRequest request = FindExpectedCase("short").request;
  request.ignore_eos = true;
  request.max_tokens = 20;
  AskCluster(**cluster, request);
  const auto count = [&](int64_t tokens) {
    request.max_tokens = tokens;
    const int64_t before = NumAllocations();
    const CaseAnswer answer = AskCluster(**cluster, request);
    EXPECT_EQ(static_cast<int64_t>(answer.token_ids.size()), tokens);
    return NumAllocations() - before;
  };
  const int64_t few = count(20);
  const int64_t many = count(20 + kTokens);
  // A token asks one rank and at most two services in each of six layers.
  const double per_question = static_cast<double>(many - few) / kTokens / (6 * 3);
  RecordProperty("allocations_per_question", std::to_string(per_question));
  EXPECT_GT(per_question, 1) << "the counter counts";
  EXPECT_LE(per_question, kMaxPerQuestion);
}

}  // namespace
}  // namespace moebius
