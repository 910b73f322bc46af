// SPDX-License-Identifier: Apache-2.0
#include "router_service/resend_budget.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(ResendBudgetTest, AlwaysAllowsOneDispatchInTenSeconds) {
  ResendBudget budget;
  const absl::Duration start = absl::Hours(5);
  EXPECT_TRUE(budget.TryTake(start, 512));
  EXPECT_FALSE(budget.TryTake(start + absl::Seconds(9), 1));
  EXPECT_TRUE(budget.TryTake(start + absl::Seconds(10), 512));
}

TEST(ResendBudgetTest, AllowsATenthOfTheRowsOfTheLastTenSeconds) {
  ResendBudget budget;
  for (int second = 0; second < 10; ++second) budget.OnSent(absl::Seconds(second), 100);
  const absl::Duration now = absl::Seconds(9.5);
  EXPECT_TRUE(budget.TryTake(now, 60));
  EXPECT_TRUE(budget.TryTake(now, 40));
  EXPECT_FALSE(budget.TryTake(now, 1));
  // Rows that were sent long ago count no more; what was resent still does.
  budget.OnSent(absl::Seconds(15), 100);
  EXPECT_FALSE(budget.TryTake(absl::Seconds(15), 1));
  budget.OnSent(absl::Seconds(20), 1000);
  EXPECT_TRUE(budget.TryTake(absl::Seconds(20), 100));
}

TEST(ResendBudgetTest, WhatItRefusesCostsNothing) {
  ResendBudget budget;
  budget.OnSent(absl::ZeroDuration(), 1000);
  EXPECT_TRUE(budget.TryTake(absl::ZeroDuration(), 50));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(budget.TryTake(absl::ZeroDuration(), 51));
  EXPECT_TRUE(budget.TryTake(absl::ZeroDuration(), 50));
}

}  // namespace
}  // namespace moebius
