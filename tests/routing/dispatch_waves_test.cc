// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch_waves.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/routing/routing_fixture.h"

namespace moebius {
namespace {

using testing::ElementsAre;

PlacementShape ShapeOf(const LayerRule& rule) {
  return PlacementShape::Make(rule.num_experts, {true}, rule.num_slices, 0);
}

TEST(DispatchWavesTest, OneWaveWhereTheLimitHolds) {
  const LayerRule rule{LayerId(0), 8, 4, 0};
  Random random(1);
  const Assignments assignments = RandomAssignments(random, 6, 8, 2, 0, 0);
  const Placement placement = Placement::SingleService(ShapeOf(rule));
  DispatchPlan plan;
  DispatchLimits limits;
  limits.max_rows_per_service = 6;
  EXPECT_THAT(*CutIntoWaves(rule, assignments, placement, limits, &plan), ElementsAre(Wave{0, 6}));
  limits.max_rows_per_service = 2;
  EXPECT_THAT(*CutIntoWaves(rule, assignments, placement, limits, &plan),
              ElementsAre(Wave{0, 1}, Wave{1, 3}, Wave{3, 4}, Wave{4, 6}));
  const Assignments none = RandomAssignments(random, 0, 8, 2, 0, 0);
  EXPECT_THAT(*CutIntoWaves(rule, none, placement, limits, &plan), ElementsAre(Wave{0, 0}));
}

TEST(DispatchWavesTest, PassesOnWhatNoWaveCanMend) {
  const LayerRule rule{LayerId(0), 8, 4, 0};
  Random random(2);
  const Assignments assignments = RandomAssignments(random, 6, 8, 2, 0, 0);
  DispatchLimits limits;
  const std::vector<uint8_t> nobody = {0};
  limits.usable_services = nobody;
  limits.max_rows_per_service = 1;
  DispatchPlan plan;
  EXPECT_EQ(CutIntoWaves(rule, assignments, Placement::SingleService(ShapeOf(rule)), limits, &plan)
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
}

TEST(DispatchWavesPropertyTest, WavesCoverAllRowsWithinTheLimitAndChangeNoBit) {
  const uint64_t seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  DispatchPlan plan;
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const auto num_experts = 1 + static_cast<int32_t>(random.Below(40));
    const auto top_k = 1 + static_cast<int32_t>(random.Below(std::min(num_experts, 8)));
    RoutingCase layer;
    layer.rule = LayerRule{LayerId(0), num_experts, 1 + static_cast<int32_t>(random.Below(4)), 1};
    layer.rule.num_combine_groups = std::min(layer.rule.num_combine_groups, num_experts);
    layer.hidden_size = 3;
    layer.assignments =
        RandomAssignments(random, static_cast<int64_t>(random.Below(60)), num_experts, top_k, 6, 7);
    const Placement placement = RandomPlacement(random, ShapeOf(layer.rule), 5, 3);
    DispatchLimits limits;
    limits.max_rows_per_service = 1 + static_cast<int64_t>(random.Below(20));
    const auto waves = CutIntoWaves(layer.rule, layer.assignments, placement, limits, &plan);
    ASSERT_TRUE(waves.ok()) << waves.status();
    int64_t next = 0;
    Assignments part;
    for (const Wave& wave : *waves) {
      ASSERT_EQ(wave.begin, next);
      next = wave.end;
      SliceAssignments(layer.assignments, wave, &part);
      ASSERT_TRUE(BuildDispatchPlan(layer.rule, part, placement, limits, &plan).ok());
      const absl::Status valid = ValidateDispatchPlan(plan, part, placement, limits);
      ASSERT_TRUE(valid.ok()) << valid;
      // The experts' outputs are those of the rows in the layer.
      RoutingCase piece = layer;
      piece.assignments = part;
      const std::vector<uint16_t> piece_bits = BitsOf(ReferenceOutput(piece));
      ASSERT_EQ(BitsOf(CombineReplies(plan, BestKernels(), layer.hidden_size)), piece_bits);
    }
    ASSERT_EQ(next, layer.assignments.num_rows);
  }
}

// Rows out: for each row its distinct services. Rows back: a combine group that one service holds
// whole for the row is one row, every other assignment is one.
TEST(WireBytesTest, RowsOnTheWireEqualTheFormula) {
  Random random(6);
  DispatchPlan plan;
  for (int trial = 0; trial < 40; ++trial) {
    const LayerRule rule{LayerId(0), 32, 4, 0};
    const Assignments assignments = RandomAssignments(random, 30, 32, 6, 9, 11);
    const Placement placement = RandomPlacement(random, ShapeOf(rule), 4, 1);
    ASSERT_TRUE(BuildDispatchPlan(rule, assignments, placement, DispatchLimits(), &plan).ok());
    int64_t rows_out = 0, rows_back = 0;
    for (int64_t row = 0; row < assignments.num_rows; ++row) {
      std::set<int32_t> services;
      std::vector<std::set<int32_t>> services_of_group(4);
      std::vector<int64_t> size_of_group(4, 0);
      for (const int32_t id : assignments.RowIds(row)) {
        if (id < 0) continue;
        const int32_t service = placement.Services(LayerId(0), ExpertId(id))[0].value();
        services.insert(service);
        services_of_group[static_cast<size_t>(rule.CombineGroup(id))].insert(service);
        ++size_of_group[static_cast<size_t>(rule.CombineGroup(id))];
      }
      rows_out += static_cast<int64_t>(services.size());
      for (size_t group = 0; group < 4; ++group) {
        if (size_of_group[group] == 0) continue;
        rows_back += services_of_group[group].size() == 1 ? 1 : size_of_group[group];
      }
    }
    const WireBytes bytes = CountWireBytes(plan.counts(), plan.counts().served, 14336);
    ASSERT_EQ(bytes.out, rows_out * 14336);
    ASSERT_EQ(bytes.back, rows_back * 14336);
    ASSERT_EQ(bytes.naive, plan.counts().served * 14336);
  }
}

TEST(WireBytesTest, AreComputedIn64Bits) {
  // 2^20 rows of k = 16 and H = 16,384: 2^38 elements, 2^39 bytes.
  DispatchCounts counts;
  counts.dispatched_rows = int64_t{1} << 24;
  counts.reply_rows = int64_t{1} << 23;
  const WireBytes bytes = CountWireBytes(counts, int64_t{1} << 24, 32768);
  EXPECT_EQ(bytes.out, int64_t{1} << 39);
  EXPECT_EQ(bytes.back, int64_t{1} << 38);
  EXPECT_EQ(bytes.naive, int64_t{1} << 39);
}

TEST(RowViewTest, OffsetsOfRowsAreComputedIn64Bits) {
  // Addresses alone: nothing is behind them.
  const int64_t width = 7168, row = (int64_t{1} << 31) / 4;
  const auto base = uintptr_t{1} << 40;
  const Bf16Rows rows(reinterpret_cast<const Bf16*>(base), row + 1, width);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.row(row)) - base,
            static_cast<uintptr_t>(row) * static_cast<uintptr_t>(width) * sizeof(Bf16));
}

}  // namespace
}  // namespace moebius
