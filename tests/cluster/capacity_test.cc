// SPDX-License-Identifier: Apache-2.0
// A capacity is the row owner's: a cluster has the bits of an embedded node, and the same losses.
#include "gtest/gtest.h"

#include "tests/cluster/cluster_fixture.h"

namespace moebius {
namespace {

CapacityPolicy TightPolicy(CapacityOverflow overflow) {
  CapacityPolicy policy;
  policy.factor = 1;
  policy.overflow = overflow;
  return policy;
}

void ExpectBitsOfOneProcess(LocalCluster& cluster, EmbeddedNode& node,
                            const GenerateRequest& request) {
  const CaseAnswer expected = Ask(node, request);
  EXPECT_FALSE(expected.exact);
  const CaseAnswer answer = AskCluster(cluster, request);
  EXPECT_EQ(answer.token_ids, expected.token_ids);
  EXPECT_EQ(answer.logits_hash, expected.logits_hash);
  EXPECT_EQ(answer.exactness.dropped, expected.exactness.dropped);
  EXPECT_EQ(answer.exactness.rerouted, expected.exactness.rerouted);
}

GenerateRequest Question() {
  GenerateRequest request = FindExpectedCase("short").request;
  request.max_tokens = 6;
  return request;
}

TEST(ClusterCapacityTest, HasTheBitsOfOneProcessOnAnyNumberOfServices) {
  for (const CapacityOverflow overflow : {CapacityOverflow::kDrop, CapacityOverflow::kNextBest}) {
    EmbeddedOptions embedded;
    embedded.capacity = TightPolicy(overflow);
    const auto node = OpenDemo(embedded);
    for (const int32_t num_experts : {1, 3}) {
      LocalClusterOptions options = DemoCluster(num_experts, 1);
      options.capacity = embedded.capacity;
      const auto cluster = LocalCluster::Make(options);
      ASSERT_TRUE(cluster.ok()) << cluster.status();
      ExpectBitsOfOneProcess(**cluster, *node, Question());
      const LeadCounters counters = (*cluster)->counters();
      EXPECT_EQ(counters.figures.assignments, counters.figures.combined + counters.figures.dropped);
      EXPECT_EQ(counters.conservation_errors, 0);
    }
  }
}

TEST(ClusterCapacityTest, AnExpertThatDiesChangesNothingOfIt) {
  EmbeddedOptions embedded;
  embedded.capacity = TightPolicy(CapacityOverflow::kDrop);
  const auto node = OpenDemo(embedded);
  LocalClusterOptions options = DemoCluster(3, 1);
  options.capacity = embedded.capacity;
  const auto cluster = LocalCluster::Make(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  GenerateRequest request = Question();
  request.max_tokens = 24;
  const CaseAnswer expected = Ask(*node, request);
  const CaseAnswer answer = AskCluster(**cluster, request, [&](int64_t tokens) {
    if (tokens >= 4) (*cluster)->KillExpert(1);
  });
  EXPECT_EQ(answer.logits_hash, expected.logits_hash);
  EXPECT_EQ(answer.exactness.dropped, expected.exactness.dropped) << "none is counted twice";
  EXPECT_EQ((*cluster)->counters().figures.dropped, answer.exactness.dropped);
}

}  // namespace
}  // namespace moebius
