// SPDX-License-Identifier: Apache-2.0
#include "router_service/load_history.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ExpertLoadTable Load(std::vector<int64_t> demand) {
  ExpertLoadTable load;
  load.layer_ids = {1, 3};
  load.num_experts = 2;
  load.demand = std::move(demand);
  return load;
}

TEST(LoadHistoryTest, KeepsWhatCameBetweenTwoLooks) {
  LoadHistory history;
  EXPECT_THAT(history.Window(0).demand, IsEmpty());
  history.Add(absl::Seconds(10), Load({5, 5, 5, 5}), 100, 10);
  EXPECT_EQ(history.Window(0).num_samples(), 0u) << "what was before has no time";
  history.Add(absl::Seconds(12), Load({6, 5, 5, 9}), 140, 14);
  history.Add(absl::Seconds(15), Load({6, 8, 5, 9}), 140, 20);
  const LoadWindow first = history.Window(0);
  EXPECT_THAT(first.demand, ElementsAre(1, 0, 0, 3));
  EXPECT_EQ(first.num_samples(), 2u);
  EXPECT_EQ(first.seconds, 5);
  EXPECT_EQ(first.prompt_tokens_per_second, 8);
  EXPECT_EQ(first.generated_tokens_per_second, 2);
  EXPECT_THAT(history.Window(1).demand, ElementsAre(0, 4, 0, 0));
  EXPECT_THAT(history.Window(2).demand, IsEmpty());
}

TEST(LoadHistoryTest, IsDueAgainAfterItsInterval) {
  LoadHistory history;
  EXPECT_TRUE(history.IsDue(absl::ZeroDuration()));
  history.Add(absl::ZeroDuration(), Load({0, 0, 0, 0}), 0, 0);
  EXPECT_FALSE(history.IsDue(LoadHistory::kInterval - absl::Nanoseconds(1)));
  EXPECT_TRUE(history.IsDue(LoadHistory::kInterval));
}

TEST(LoadHistoryTest, ForgetsTheOldest) {
  LoadHistory history;
  for (int64_t at = 0; at <= static_cast<int64_t>(LoadHistory::kMaxSamples) + 3; ++at) {
    history.Add(absl::Seconds(at), Load({at * at, 0, 0, 0}), 0, 0);
  }
  const LoadWindow window = history.Window(0);
  ASSERT_EQ(window.num_samples(), LoadHistory::kMaxSamples);
  EXPECT_EQ(window.demand[0], 4u * 4 - 3 * 3);
}

}  // namespace
}  // namespace moebius
