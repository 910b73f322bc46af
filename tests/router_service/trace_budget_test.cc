// SPDX-License-Identifier: Apache-2.0
#include "router_service/trace_budget.h"

#include "gtest/gtest.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

int Taken(TraceBudget& budget, int asked) {
  int taken = 0;
  for (int i = 0; i < asked; ++i) taken += budget.TryTake() ? 1 : 0;
  return taken;
}

TEST(TraceBudgetTest, HoldsASecondsWorthAndFillsEvenly) {
  FakeClock clock;
  TraceBudget budget(10, clock);
  EXPECT_EQ(Taken(budget, 25), 10);
  EXPECT_EQ(budget.num_refused(), 15);
  clock.Advance(absl::Milliseconds(350));
  EXPECT_EQ(Taken(budget, 25), 3);
  clock.Advance(absl::Hours(1));
  EXPECT_EQ(Taken(budget, 25), 10) << "never more than a second's worth";
  EXPECT_EQ(budget.num_refused(), 15 + 22 + 15);
}

TEST(TraceBudgetTest, OfLessThanOneASecondHoldsOne) {
  FakeClock clock;
  TraceBudget budget(0.5, clock);
  EXPECT_EQ(Taken(budget, 3), 1);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(Taken(budget, 1), 0);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(Taken(budget, 3), 1);
}

TEST(TraceBudgetTest, OfZeroGivesNothingHoweverLongOneWaits) {
  FakeClock clock;
  TraceBudget budget(0, clock);
  EXPECT_EQ(Taken(budget, 2), 0);
  clock.Advance(absl::Hours(1));
  EXPECT_EQ(Taken(budget, 2), 0);
  EXPECT_EQ(budget.num_refused(), 4);
}

}  // namespace
}  // namespace moebius
