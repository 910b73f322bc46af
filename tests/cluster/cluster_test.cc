// SPDX-License-Identifier: Apache-2.0
// The demo's recorded bits from clusters of every small shape. One axis is varied at a time.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cluster/cluster_fixture.h"

namespace moebius {
namespace {

void ExpectSameBitsOf(const LocalClusterOptions& options, const std::vector<std::string>& cases) {
  const auto cluster = LocalCluster::Make(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const std::string& name : cases) {
    const ExpectedCase expected = FindExpectedCase(name);
    ExpectSameBits(AskCluster(**cluster, expected.request), expected);
  }
}

class ExpertsTest : public testing::TestWithParam<int32_t> {};
TEST_P(ExpertsTest, AnyNumberOfExpertServicesGivesTheSameBits) {
  ExpectSameBitsOf(DemoCluster(GetParam(), 1), {"greedy", "sampled"});
}
INSTANTIATE_TEST_SUITE_P(Cluster, ExpertsTest, testing::Values(1, 2, 3, 4, 5));

class RanksTest : public testing::TestWithParam<int32_t> {};
TEST_P(RanksTest, AnyNumberOfAttentionRanksGivesTheSameBits) {
  ExpectSameBitsOf(DemoCluster(1, GetParam()), {"greedy", "sampled"});
}
INSTANTIATE_TEST_SUITE_P(Cluster, RanksTest, testing::Values(1, 2, 3, 4));

// Thirty-two spans: every rank needs keys of every other, in prompt and generated rows.
class LongPromptTest : public testing::TestWithParam<int32_t> {};
TEST_P(LongPromptTest, SpansOnSeveralRanksGiveTheSameBits) {
  ExpectSameBitsOf(DemoCluster(2, GetParam()), {"long"});
}
INSTANTIATE_TEST_SUITE_P(Cluster, LongPromptTest, testing::Values(1, 2, 3, 4));

class MethodsTest : public testing::TestWithParam<AttentionMethod> {};
TEST_P(MethodsTest, EveryWayToShareAPromptGivesTheSameBits) {
  LocalClusterOptions options = DemoCluster(1, 4);
  options.attention_method = GetParam();
  ExpectSameBitsOf(options, {"greedy", "long"});
}
INSTANTIATE_TEST_SUITE_P(Cluster, MethodsTest,
                         testing::Values(AttentionMethod::kAllGather, AttentionMethod::kRingPassKv,
                                         AttentionMethod::kRingPassQ, AttentionMethod::kUlysses,
                                         AttentionMethod::k2d));

class ChunksTest : public testing::TestWithParam<int64_t> {};
TEST_P(ChunksTest, APromptMayBeCutAnyhow) {
  LocalClusterOptions options = DemoCluster(2, 2);
  options.chunk_rows = GetParam();
  ExpectSameBitsOf(options, {"greedy"});
}
INSTANTIATE_TEST_SUITE_P(Cluster, ChunksTest, testing::Values(1, 7, 100));

TEST(ClusterTest, ThirtyTwoClientsAtOnceHaveTheBitsOfOne) {
  const auto cluster = LocalCluster::Make(DemoCluster(4, 2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<ExpectedCase> cases = {FindExpectedCase("greedy"), FindExpectedCase("sampled")};
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (size_t client = 0; client < 32; ++client) {
    GenerateRequest request = cases[client % 2].request;
    request.request_id = "client-" + std::to_string(client);
    const auto stream = (*cluster)->Submit(request);
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  for (size_t client = 0; client < streams.size(); ++client) {
    GenerateEvent last;
    while (const auto event = streams[client]->Next()) last = *event;
    EXPECT_TRUE(streams[client]->status().ok()) << streams[client]->status();
    EXPECT_EQ(last.logits_hash, cases[client % 2].logits_hash) << "client " << client;
  }
}

TEST(ClusterTest, SaysWhatIsMissingWhenItCannotStart) {
  LocalClusterOptions options = DemoCluster(1, 1);
  options.kv_budget_bytes = 1;  // less than a block: the rank cannot take its slot
  options.start_limit = absl::Seconds(1);
  const auto cluster = LocalCluster::Make(options);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(cluster.status().message().find("attention slot 0 of 1"), std::string::npos)
      << cluster.status();
}

}  // namespace
}  // namespace moebius
