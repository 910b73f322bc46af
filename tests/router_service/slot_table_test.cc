// SPDX-License-Identifier: Apache-2.0
#include "router_service/slot_table.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Greeting Wanting(int32_t index) {
  Greeting greeting;
  greeting.wanted_index = index;
  return greeting;
}

void MakeUsable(SlotTable& table, PeerId peer) {
  table.SetState(*table.IndexOf(peer), peer, SlotState::kUsable, absl::OkStatus());
}

TEST(SlotTableTest, FillsTheLowestSlotUnlessAnotherIsWanted) {
  SlotTable table(Role::kExpert, 3);
  EXPECT_EQ(table.Join(PeerId(1), "a", Wanting(1)), 1);
  EXPECT_EQ(table.Join(PeerId(2), "b", Wanting(-1)), 0);
  EXPECT_EQ(table.Join(PeerId(3), "c", Wanting(1)), 2) << "a wanted slot that is taken";
  EXPECT_EQ(table.IndexOf(PeerId(3)), 2);
  EXPECT_EQ(table.slot(2).state, SlotState::kLoading);
}

TEST(SlotTableTest, AProcessThatComesBackGetsItsOldSlot) {
  SlotTable table(Role::kExpert, 3);
  table.Join(PeerId(1), "a", Wanting(-1));
  table.Join(PeerId(2), "b", Wanting(-1));
  table.Leave(PeerId(1));
  EXPECT_EQ(table.slot(0).state, SlotState::kEmpty);
  EXPECT_EQ(table.Join(PeerId(3), "new", Wanting(-1)), 2) << "a slot that nobody had goes first";
  EXPECT_EQ(table.Join(PeerId(4), "a", Wanting(2)), 0);
}

TEST(SlotTableTest, TheLongestWaitingSpareTakesAFreeSlot) {
  SlotTable table(Role::kExpert, 1);
  EXPECT_EQ(table.Join(PeerId(1), "a", Wanting(-1)), 0);
  EXPECT_EQ(table.Join(PeerId(2), "b", Wanting(0)), std::nullopt);
  EXPECT_EQ(table.Join(PeerId(3), "c", Wanting(0)), std::nullopt);
  EXPECT_EQ(table.num_spares(), 2);
  EXPECT_EQ(table.Leave(PeerId(2)), std::nullopt) << "a spare that goes frees nothing";
  EXPECT_EQ(table.Leave(PeerId(1)), 0);
  EXPECT_EQ(table.slot(0).peer, PeerId(3));
  EXPECT_EQ(table.slot(0).state, SlotState::kLoading);
}

TEST(SlotTableTest, NewsOfAProcessThatHasLeftChangeNothing) {
  SlotTable table(Role::kExpert, 1);
  table.Join(PeerId(1), "a", Wanting(-1));
  table.Leave(PeerId(1));
  table.SetState(0, PeerId(1), SlotState::kUsable, absl::OkStatus());
  EXPECT_EQ(table.slot(0).state, SlotState::kEmpty);
  table.Join(PeerId(2), "b", Wanting(-1));
  table.SetState(0, PeerId(1), SlotState::kUsable, absl::OkStatus());
  table.SetSuspect(PeerId(1), true);
  EXPECT_EQ(table.slot(0).state, SlotState::kLoading);
  EXPECT_FALSE(table.slot(0).suspect);
}

TEST(SlotTableTest, ASuspectSlotIsNotUsableUntilItIsHeardOf) {
  SlotTable table(Role::kAttention, 1);
  table.Join(PeerId(1), "a", Wanting(-1));
  MakeUsable(table, PeerId(1));
  EXPECT_TRUE(table.slot(0).is_usable());
  table.SetSuspect(PeerId(1), true);
  EXPECT_FALSE(table.slot(0).is_usable());
  table.SetSuspect(PeerId(1), false);
  EXPECT_TRUE(table.slot(0).is_usable());
}

TEST(SlotTableTest, SaysWhatIsMissingInWords) {
  SlotTable table(Role::kExpert, 5);
  for (const auto& [peer, name] : {std::pair<int, const char*>{1, "a"}, {2, "b"}, {3, "c"}}) {
    table.Join(PeerId(static_cast<uint32_t>(peer)), name, Wanting(-1));
  }
  SlotReady half;
  half.loaded_bytes = 3145728;
  half.total_bytes = 8388608;
  table.SetReport(0, PeerId(1), half);
  MakeUsable(table, PeerId(2));
  table.SetState(2, PeerId(3), SlotState::kFailed,
                 WithHint(absl::ResourceExhaustedError("no memory"), "give more"));
  table.Join(PeerId(4), "d", Wanting(-1));
  table.Leave(PeerId(4));
  EXPECT_THAT(
      table.Missing(),
      ElementsAre("expert slot 0 of 5 (a): loading 3,145,728 of 8,388,608 bytes",
                  "expert slot 2 of 5 (c): no memory (give more)",
                  "expert slot 3 of 5 (d): it has gone", "expert slot 4 of 5: nobody has joined"));
}

}  // namespace
}  // namespace moebius
