// SPDX-License-Identifier: Apache-2.0
// The same bits while processes die, come back, and their links are slow.
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/transport/faulty/faulty.h"
#include "moebius/transport/loopback/loopback.h"
#include "tests/cluster/cluster_fixture.h"

namespace moebius {
namespace {

/// The case's answer with `fault` in the middle of it has the case's bits.
void ExpectSameBitsAcross(LocalCluster& cluster, const ExpectedCase& expected,
                          const std::function<void()>& fault) {
  bool has_struck = false;
  const CaseAnswer answer = AskCluster(cluster, expected.request, [&](int64_t num_tokens) {
    if (num_tokens < 5 || has_struck) return;
    has_struck = true;
    fault();
  });
  EXPECT_TRUE(has_struck);
  ExpectSameBits(answer, expected);
}

TEST(ClusterFaultsTest, AnExpertThatDiesInTheMiddleCostsNothing) {
  const auto cluster = LocalCluster::Make(DemoCluster(3, 1));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("greedy");
  ExpectSameBitsAcross(**cluster, expected, [&] { (*cluster)->KillExpert(1); });
  EXPECT_EQ((*cluster)->counters().failed, 0);
  EXPECT_FALSE((*cluster)->roster().IsExpertUsable(ServiceId(1)));
  // It comes back into its slot.
  ASSERT_TRUE((*cluster)->RestartExpert(1).ok());
  EXPECT_TRUE((*cluster)->roster().WaitUntilComplete(absl::Seconds(30)));
  ExpectSameBits(AskCluster(**cluster, expected.request), expected);
}

TEST(ClusterFaultsTest, AnExpertWithoutReplicaIsWaitedFor) {
  LocalClusterOptions options = DemoCluster(2, 1);
  options.num_replicas = 1;
  const auto cluster = LocalCluster::Make(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("greedy");
  ExpectSameBitsAcross(**cluster, expected, [&] {
    (*cluster)->KillExpert(1);
    EXPECT_TRUE((*cluster)->RestartExpert(1).ok());
  });
}

TEST(ClusterFaultsTest, ALostAttentionRankIsComputedAgain) {
  const auto cluster = LocalCluster::Make(DemoCluster(1, 2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("greedy");
  ExpectSameBitsAcross(**cluster, expected, [&] {
    (*cluster)->KillAttention(1);
    EXPECT_TRUE((*cluster)->RestartAttention(1).ok());
  });
}

TEST(ClusterFaultsTest, ALostShareOfALongPromptIsComputedAgain) {
  const auto cluster = LocalCluster::Make(DemoCluster(1, 3));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("long");
  ExpectSameBitsAcross(**cluster, expected, [&] {
    (*cluster)->KillAttention(2);
    EXPECT_TRUE((*cluster)->RestartAttention(2).ok());
  });
}

TEST(ClusterFaultsTest, DelaysThatReorderLinksChangeNothing) {
  constexpr uint64_t kSeed = 20261129;
  SCOPED_TRACE(kSeed);
  Reactor reactor(Clock::Monotonic());
  LoopbackProvider loopback(reactor);
  FaultPlan plan(kSeed);
  LinkFaults faults;
  faults.max_delay = absl::Microseconds(300);
  plan.Set(faults);
  std::map<std::string, std::unique_ptr<FaultyProvider>> providers;
  ReactorThread thread(reactor);
  LocalClusterOptions options = DemoCluster(3, 2);
  options.provider = [&](const std::string& name) -> LinkProvider* {
    auto& provider = providers[name];
    if (provider == nullptr) provider = std::make_unique<FaultyProvider>(loopback, plan, reactor);
    return provider.get();
  };
  const auto cluster = LocalCluster::Make(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ExpectedCase expected = FindExpectedCase("greedy");
  ExpectSameBits(AskCluster(**cluster, expected.request), expected);
}

}  // namespace
}  // namespace moebius
