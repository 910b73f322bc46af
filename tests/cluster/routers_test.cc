// SPDX-License-Identifier: Apache-2.0
// Several routers with the same expert services: each has its own ranks, sessions and requests.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cluster/cluster_fixture.h"

namespace moebius {
namespace {

LocalClusterOptions SharedExperts(int32_t num_routers, int32_t num_experts) {
  LocalClusterOptions options = DemoCluster(num_experts, 1);
  options.num_routers = num_routers;
  return options;
}

std::shared_ptr<GenerateStream> Submit(LocalCluster& cluster, int32_t router,
                                       GenerateRequest request, const std::string& id) {
  request.request_id = id;
  const auto stream = cluster.SubmitTo(router, request);
  EXPECT_TRUE(stream.ok()) << stream.status();
  return *stream;
}

void ExpectSameBitsOf(GenerateStream& stream, const ExpectedCase& expected) {
  CaseAnswer answer;
  while (const auto event = stream.Next()) {
    answer.token_ids.insert(answer.token_ids.end(), event->token_ids.begin(),
                            event->token_ids.end());
    if (!event->finished) continue;
    answer.logits_hash = event->logits_hash;
    answer.exact = event->exactness.exact();
  }
  EXPECT_TRUE(stream.status().ok()) << stream.status();
  ExpectSameBits(answer, expected);
}

// Of a stream whose first tokens have been taken.
void ExpectSameLogits(GenerateStream& stream, const ExpectedCase& expected) {
  GenerateEvent last;
  while (const auto event = stream.Next()) last = *event;
  EXPECT_TRUE(stream.status().ok()) << stream.status();
  EXPECT_EQ(last.logits_hash, expected.logits_hash) << expected.name;
}

// Both routers have steps under way at the same time, with the same step numbers.
TEST(RoutersTest, TwoRoutersAtOnceHaveTheBitsOfOne) {
  const auto cluster = LocalCluster::Make(SharedExperts(2, 3));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<ExpectedCase> cases = {FindExpectedCase("greedy"), FindExpectedCase("sampled")};
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (size_t client = 0; client < 8; ++client) {
    // The same request ids at both: they are the router's own.
    streams.push_back(Submit(**cluster, static_cast<int32_t>(client % 2),
                             cases[client / 2 % 2].request,
                             "client-" + std::to_string(client / 2)));
  }
  for (size_t client = 0; client < streams.size(); ++client) {
    ExpectSameBitsOf(*streams[client], cases[client / 2 % 2]);
  }
}

TEST(RoutersTest, TheDeathOfOneTouchesNoRequestOfTheOtherAndItComesBack) {
  const auto cluster = LocalCluster::Make(SharedExperts(2, 2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("greedy");
  const auto lost = Submit(**cluster, 1, expected.request, "lost");
  const auto kept = Submit(**cluster, 0, expected.request, "kept");
  ASSERT_TRUE(lost->Next().has_value());
  ASSERT_TRUE(kept->Next().has_value());
  (*cluster)->KillRouter(1);
  while (lost->Next().has_value()) {
  }
  EXPECT_FALSE(lost->status().ok());
  ExpectSameLogits(*kept, expected);
  ExpectSameBitsOf(*Submit(**cluster, 0, expected.request, "after"), expected);
  ASSERT_TRUE((*cluster)->RestartRouter(1).ok());
  const auto first = Submit(**cluster, 0, expected.request, "again");
  ExpectSameBitsOf(*Submit(**cluster, 1, expected.request, "again"), expected);
  ExpectSameBitsOf(*first, expected);
}

TEST(RoutersTest, AnExpertThatDiesIsReplacedForBoth) {
  const auto cluster = LocalCluster::Make(SharedExperts(2, 2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("sampled");
  const auto first = Submit(**cluster, 0, expected.request, "first");
  const auto second = Submit(**cluster, 1, expected.request, "second");
  ASSERT_TRUE(first->Next().has_value());
  (*cluster)->KillExpert(1);
  ExpectSameLogits(*first, expected);
  ExpectSameLogits(*second, expected);
  ASSERT_TRUE((*cluster)->RestartExpert(1).ok());
  ExpectSameBitsOf(*Submit(**cluster, 0, expected.request, "then"), expected);
  ExpectSameBitsOf(*Submit(**cluster, 1, expected.request, "then"), expected);
}

}  // namespace
}  // namespace moebius
