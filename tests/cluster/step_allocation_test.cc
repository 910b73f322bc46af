// SPDX-License-Identifier: Apache-2.0
// What a generated token of a cluster allocates, all processes' parts together: nothing for
// messages, rows, plans or sums.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"

#include "tests/cluster/cluster_fixture.h"
#include "tests/support/counting_allocator.h"

namespace moebius {
namespace {

constexpr int kTokens = 200;
// A token is told to its client, with five allocations, and every 31st plan and choice of a gate is
// checked against all rules by code that allocates. The 36 messages of a token have none left.
constexpr double kMaxPerToken = 18;

TEST(ClusterStepAllocationTest, AStepAllocatesNothingForItsMessages) {
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
  const double per_token = static_cast<double>(many - few) / kTokens;
  RecordProperty("allocations_per_token", std::to_string(per_token));
  EXPECT_GT(per_token, 1) << "the counter counts";
  EXPECT_LE(per_token, kMaxPerToken);
}

}  // namespace
}  // namespace moebius
