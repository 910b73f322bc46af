// SPDX-License-Identifier: Apache-2.0
// A capacity in a whole node: what it drops is counted and told, and who computes changes nothing.
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/node/expected_cases.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

// Every policy, tight enough that most steps of a prompt overflow.
std::vector<CapacityPolicy> Policies() {
  std::vector<CapacityPolicy> policies;
  for (const CapacityOrder order :
       {CapacityOrder::kWeight, CapacityOrder::kPosition, CapacityOrder::kToken}) {
    for (const CapacityOverflow overflow :
         {CapacityOverflow::kDrop, CapacityOverflow::kDropRenormalize,
          CapacityOverflow::kNextBest}) {
      CapacityPolicy policy;
      policy.factor = 1;
      policy.order = order;
      policy.overflow = overflow;
      policies.push_back(policy);
    }
  }
  return policies;
}

GenerateRequest Question() {
  GenerateRequest request = FindExpectedCase("short").request;
  request.max_tokens = 4;
  return request;
}

EmbeddedOptions With(const CapacityPolicy& policy, int pipelines = 1) {
  EmbeddedOptions options;
  options.capacity = policy;
  options.num_expert_pipelines = pipelines;
  return options;
}

TEST(NodeCapacityTest, AFactorThatCanDropNothingGivesTheRecordedBits) {
  CapacityPolicy policy;
  policy.factor = 8;  // 32 experts over top-4
  const auto node = OpenDemo(With(policy));
  ExpectSameBits(*node, FindExpectedCase("short"));
  EXPECT_EQ(node->counters().degraded_capacity, 0);
}

TEST(NodeCapacityTest, EveryPolicyGivesTheSameBitsOnAnyNumberOfServices) {
  for (const CapacityPolicy& policy : Policies()) {
    SCOPED_TRACE(DescribeCapacity(policy));
    const auto one = OpenDemo(With(policy));
    const CaseAnswer expected = Ask(*one, Question());
    EXPECT_FALSE(expected.exact);
    EXPECT_GT(expected.exactness.dropped + expected.exactness.rerouted, 0);
    for (const int pipelines : {2, 5}) {
      const auto node = OpenDemo(With(policy, pipelines));
      const CaseAnswer answer = Ask(*node, Question());
      EXPECT_EQ(answer.token_ids, expected.token_ids);
      EXPECT_EQ(answer.logits_hash, expected.logits_hash);
      EXPECT_EQ(answer.exactness.dropped, expected.exactness.dropped);
      EXPECT_EQ(answer.exactness.rerouted, expected.exactness.rerouted);
    }
  }
}

TEST(NodeCapacityTest, WhatIsDroppedIsCountedAndToldAndNothingElseIsLost) {
  CapacityPolicy policy;
  policy.factor = 1;
  const auto node = OpenDemo(With(policy));
  const CaseAnswer answer = Ask(*node, Question());
  const LeadCounters counters = node->counters();
  EXPECT_GT(answer.exactness.dropped, 0);
  EXPECT_EQ(counters.figures.dropped, answer.exactness.dropped) << "nobody else was there";
  EXPECT_EQ(counters.figures.assignments, counters.figures.combined + counters.figures.dropped);
  EXPECT_EQ(counters.conservation_errors, 0);
  EXPECT_EQ(counters.degraded_capacity, 1);
  ASSERT_EQ(answer.exactness.reasons.size(), 1u);
  EXPECT_THAT(answer.exactness.reasons[0], HasSubstr("capacity factor 1 by weight, drop"));
  const ExpertLoadTable load = node->front().expert_load();
  EXPECT_TRUE(load.has_capacity);
  const auto sum = [](const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  EXPECT_EQ(sum(load.demand), counters.figures.assignments) << "demand, not what was served";
  EXPECT_EQ(sum(load.dropped), counters.figures.dropped);
  EXPECT_EQ(node->front().server_info().capacity, DescribeCapacity(policy));
}

TEST(NodeCapacityTest, RejectEndsTheRequestThatDoesNotFitAndTheNextOneIsServed) {
  CapacityPolicy policy;
  policy.factor = 1;
  policy.overflow = CapacityOverflow::kReject;
  policy.min_capacity = 2;
  const auto node = OpenDemo(With(policy));
  const absl::Status refused =
      node->Generate(Question(), [](const GenerateEvent&) { return true; });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(" has no room for position "));
  EXPECT_GT(node->counters().rejected_rows, 0);
  // One row never overflows: four different experts.
  GenerateRequest single;
  single.token_ids = {256};
  single.max_tokens = 3;
  EXPECT_TRUE(Ask(*node, single).exact);
  while (node->usage().running_sessions > 0) std::this_thread::yield();
  EXPECT_EQ(node->usage().reserved_kv_tokens, 0);
}

TEST(NodeCapacityTest, ForwardTellsWhatItsOwnRowsLost) {
  CapacityPolicy policy;
  policy.factor = 1;
  const auto node = OpenDemo(With(policy));
  ForwardRequest request;
  request.layer = 3;
  request.num_rows = 24;
  request.hidden_size = node->config().hidden_size;
  // Equal rows choose equal experts: 24 rows for each of four experts that take 3.
  const std::string row(static_cast<size_t>(request.hidden_size) * 2, '\x3c');
  for (int64_t i = 0; i < request.num_rows; ++i) request.rows += row;
  const auto answer = node->front().Forward(request, absl::Seconds(30));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->assignments, 96);
  EXPECT_EQ(answer->exactness.dropped, 84);
  EXPECT_FALSE(answer->exactness.exact());
  EXPECT_EQ(node->counters().degraded_capacity, 1);
}

TEST(NodeCapacityTest, ADryRunShowsWhatTheCapacityWouldDrop) {
  CapacityPolicy policy;
  policy.factor = 1;
  const auto node = OpenDemo(With(policy));
  RouteRequest request;
  request.token_ids = Question().token_ids;
  request.layer = 3;
  const auto answer = node->front().Route(request, absl::Seconds(30));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GT(std::accumulate(answer->dropped.begin(), answer->dropped.end(), int64_t{0}), 0);
  EXPECT_EQ(std::accumulate(answer->load.begin(), answer->load.end(), int64_t{0}),
            answer->num_tokens() * answer->top_k);
  EXPECT_EQ(node->counters().figures.assignments, 0) << "and counts nowhere";
}

}  // namespace
}  // namespace moebius
