// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch_plan.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/routing/replica_choice.h"
#include "tests/routing/routing_fixture.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 8 experts in 4 groups {0,1} {2,3} {4,5} {6,7} on 2 services: groups 0 and 1, groups 2 and 3.
LayerRule SmallRule(int32_t num_slices) { return LayerRule{LayerId(0), 8, 4, num_slices}; }

Placement OnServices(int32_t num_services, int32_t replicas, int32_t num_slices) {
  const PlacementShape shape = PlacementShape::Make(8, {true}, num_slices, 0);
  return *Placement::Static(shape, {.num_services = num_services, .expert_replicas = replicas});
}

Assignments Rows(std::vector<std::vector<int32_t>> ids) {
  Assignments assignments;
  const auto top_k = static_cast<int32_t>(ids.empty() ? 2 : ids[0].size());
  assignments.Reset(static_cast<int64_t>(ids.size()), top_k);
  size_t place = 0;
  for (const std::vector<int32_t>& row : ids) {
    for (size_t choice = 0; choice < row.size(); ++choice) {
      assignments.expert_ids[place] = row[choice];
      // 0.5, 0.25, …: the weight says which choice it is.
      assignments.weights[place++] = 1.0f / static_cast<float>(2 << choice);
    }
  }
  return assignments;
}

DispatchPlan Build(const LayerRule& rule, const Assignments& assignments,
                   const Placement& placement, const DispatchLimits& limits = DispatchLimits()) {
  DispatchPlan plan;
  const absl::Status status = BuildDispatchPlan(rule, assignments, placement, limits, &plan);
  EXPECT_TRUE(status.ok()) << status;
  const absl::Status valid = ValidateDispatchPlan(plan, assignments, placement, limits);
  EXPECT_TRUE(valid.ok()) << valid;
  return plan;
}

TEST(DispatchPlanTest, SendsARowOncePerServiceInTheOrderOfItsSum) {
  // Choices 6 1 7 0: groups 0 {1, 0} and 3 {6, 7}.
  const DispatchPlan plan =
      Build(SmallRule(0), Rows({{6, 1, 7, 0}, {5, 4, 6, 7}}), OnServices(2, 1, 0));
  ASSERT_EQ(plan.services().size(), 2u);
  const ServiceDispatch& first = plan.services()[0];
  EXPECT_THAT(first.row_ids, ElementsAre(0));
  EXPECT_THAT(first.row_begin, ElementsAre(0, 2));
  EXPECT_THAT(first.expert_ids, ElementsAre(1, 0));
  EXPECT_THAT(first.weights, ElementsAre(0.25f, 0.0625f));
  EXPECT_THAT(first.joins_previous, ElementsAre(0, 1));
  EXPECT_EQ(first.num_reply_rows, 1);
  const ServiceDispatch& second = plan.services()[1];
  EXPECT_THAT(second.row_ids, ElementsAre(0, 1));
  EXPECT_THAT(second.row_begin, ElementsAre(0, 2, 6));
  EXPECT_THAT(second.expert_ids, ElementsAre(6, 7, 5, 4, 6, 7));
  EXPECT_THAT(second.joins_previous, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_EQ(second.num_reply_rows, 3);
  // By expert, then row: 4{1} 5{1} 6{0,1} 7{0,1}.
  EXPECT_THAT(second.experts,
              ElementsAre(ExpertSegment{ExpertId(4), 0, 1}, ExpertSegment{ExpertId(5), 1, 2},
                          ExpertSegment{ExpertId(6), 2, 4}, ExpertSegment{ExpertId(7), 4, 6}));
  EXPECT_THAT(second.expert_rows, ElementsAre(1, 1, 0, 1, 0, 1));
  EXPECT_THAT(second.expert_position, ElementsAre(2, 4, 1, 0, 3, 5));
  EXPECT_EQ(plan.counts().demanded, 8);
  EXPECT_EQ(plan.counts().served, 8);
  EXPECT_EQ(plan.counts().dispatched_rows, 3);
  EXPECT_EQ(plan.counts().reply_rows, 4);
  EXPECT_EQ(plan.counts().active_experts, 6);
}

TEST(DispatchPlanTest, RepliesRowByRowWhereAGroupIsSplit) {
  // On 8 services each expert is alone: groups {0,1} and {2,3} are split.
  const DispatchPlan plan = Build(SmallRule(0), Rows({{1, 2, 0}}), OnServices(8, 1, 0));
  EXPECT_EQ(plan.counts().reply_rows, 3);
  ASSERT_EQ(plan.Entries(0).size(), 3u);
  const auto entries = plan.Entries(0);
  // Group 0: choice 0 (expert 1), choice 2 (expert 0); then group 1.
  EXPECT_EQ(entries[0].service, 1);
  EXPECT_EQ(entries[0].weight, 0.5f);
  EXPECT_FALSE(entries[0].ends_group);
  EXPECT_EQ(entries[1].service, 0);
  EXPECT_EQ(entries[1].weight, 0.125f);
  EXPECT_TRUE(entries[1].ends_group);
  EXPECT_EQ(entries[2].service, 2);
  EXPECT_TRUE(entries[2].ends_group);
}

TEST(DispatchPlanTest, AddsSharedSlicesBehindTheGroups) {
  const DispatchPlan plan = Build(SmallRule(2), Rows({{7, 0}}), OnServices(1, 1, 2));
  const ServiceDispatch& dispatch = plan.services()[0];
  EXPECT_THAT(dispatch.expert_ids, ElementsAre(0, 7, 8, 9));
  EXPECT_THAT(dispatch.joins_previous, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(plan.Entries(0)[2].kind, CombineEntry::Kind::kSlice);
  EXPECT_EQ(plan.counts().demanded, 2);
}

TEST(DispatchPlanTest, DenseLayersNeedNoGate) {
  const PlacementShape shape = PlacementShape::Make(8, {false}, 0, 3);
  Assignments rows;
  rows.Reset(2, 0);
  const LayerRule rule{LayerId(0), 8, 4, 3};
  const DispatchPlan whole = Build(rule, rows, Placement::SingleService(shape));
  EXPECT_EQ(whole.services()[0].num_reply_rows, 2);
  EXPECT_EQ(whole.Entries(1)[0].kind, CombineEntry::Kind::kRowSum);
  const DispatchPlan split =
      Build(rule, rows, *Placement::Static(shape, {.num_services = 3, .expert_replicas = 1}));
  EXPECT_EQ(split.counts().reply_rows, 6);
  EXPECT_EQ(split.Entries(1)[0].kind, CombineEntry::Kind::kSlice);
  EXPECT_EQ(split.counts().demanded, 0);
}

TEST(DispatchPlanTest, ZeroRowsAndServicesWithoutRowsAreOrdinary) {
  const DispatchPlan none = Build(SmallRule(1), Rows({}), OnServices(4, 2, 1));
  EXPECT_EQ(none.num_rows(), 0);
  ASSERT_EQ(none.services().size(), 4u);
  EXPECT_THAT(none.services()[3].row_begin, ElementsAre(0));
  const DispatchPlan one = Build(SmallRule(0), Rows({{7, 6}}), OnServices(4, 1, 0));
  EXPECT_THAT(one.services()[0].row_ids, IsEmpty());
  EXPECT_THAT(one.services()[0].row_begin, ElementsAre(0));
  EXPECT_THAT(one.services()[3].row_ids, ElementsAre(0));
}

TEST(DispatchPlanTest, RefusedRowsGoNowhere) {
  Assignments assignments = Rows({{0, 1}, {kNoExpert, kNoExpert}, {2, 3}});
  assignments.refused_rows = {1};
  const DispatchPlan plan = Build(SmallRule(1), assignments, OnServices(1, 1, 1));
  EXPECT_THAT(plan.services()[0].row_ids, ElementsAre(0, 2));
  EXPECT_THAT(plan.Entries(1), IsEmpty());
  EXPECT_EQ(plan.counts().demanded, 4);
}

TEST(DispatchPlanTest, DroppedAssignmentsAreDemandedAndNotServed) {
  const Assignments assignments = Rows({{0, MarkDropped(3)}, {MarkDropped(0), MarkDropped(1)}});
  const DispatchPlan plan = Build(SmallRule(1), assignments, OnServices(2, 1, 1));
  EXPECT_EQ(plan.counts().demanded, 4);
  EXPECT_EQ(plan.counts().served, 1);
  EXPECT_EQ(plan.counts().dropped, 3);
  EXPECT_EQ(plan.Entries(1).size(), 1u) << "the shared slice remains";
}

TEST(DispatchPlanTest, FewRowsOfAnExpertStayOnOneReplica) {
  const Placement placement = OnServices(4, 4, 0);
  DispatchLimits limits;
  limits.balance_rows = 32;
  std::vector<std::vector<int32_t>> rows(63, {0, 1});
  EXPECT_EQ(Build(SmallRule(0), Rows(rows), placement, limits).counts().active_experts, 2);
  rows.assign(128, {0, 1});
  const DispatchPlan spread = Build(SmallRule(0), Rows(rows), placement, limits);
  EXPECT_EQ(spread.counts().active_experts, 8);
  for (const ServiceDispatch& dispatch : spread.services()) EXPECT_EQ(dispatch.num_rows(), 32);
  EXPECT_EQ(spread.counts().reply_rows, 128) << "a row's group stays whole";
}

TEST(DispatchPlanTest, LevelsTheWorkOverReplicas) {
  // Four active experts, each on both services.
  const DispatchPlan plan = Build(SmallRule(0), Rows({{0, 2}, {4, 6}}), OnServices(2, 2, 0));
  EXPECT_EQ(plan.services()[0].experts.size(), 2u);
  EXPECT_EQ(plan.services()[1].experts.size(), 2u);
}

int NumAsked(const DispatchPlan& plan) {
  int count = 0;
  for (const ServiceDispatch& dispatch : plan.services()) count += dispatch.num_rows() > 0;
  return count;
}

// Experts in a ring: e on services e and e + 1 of four; 4 to 7 as 0 to 3.
Placement RingOfReplicas() {
  PlacementShape shape = PlacementShape::Make(8, {true}, 0, 0);
  Placement::Table table(1);
  for (int32_t e = 0; e < 8; ++e) {
    table[0].push_back({ServiceId(e % 4), ServiceId((e + 1) % 4)});
  }
  return *Placement::Make(Epoch(1), std::move(shape), 4, table);
}

TEST(DispatchPlanTest, SmallWorkGoesToFewServicesWhereAskingCosts) {
  DispatchLimits limits;
  limits.balance_rows = 32;
  const Assignments row = Rows({{0, 1, 2, 3}});
  EXPECT_EQ(NumAsked(Build(SmallRule(0), row, RingOfReplicas(), limits)), 4);
  limits.message_rows = 1000;
  const DispatchPlan plan = Build(SmallRule(0), row, RingOfReplicas(), limits);
  EXPECT_EQ(NumAsked(plan), 3);
  // Three experts of neighbours: the two in the middle hold all of them.
  const DispatchPlan middle = Build(SmallRule(0), Rows({{0, 1, 2}}), RingOfReplicas(), limits);
  EXPECT_EQ(NumAsked(middle), 2);
  EXPECT_THAT(middle.services()[0].row_ids, IsEmpty());
  EXPECT_THAT(middle.services()[3].row_ids, IsEmpty());
}

TEST(DispatchPlanTest, WorkBeyondWhatAskingCostsIsLevelledAgain) {
  DispatchLimits limits;
  limits.balance_rows = 32;
  limits.message_rows = 100;
  const std::vector<std::vector<int32_t>> rows(64, {0, 1, 2, 3, 4, 5, 6, 7});
  const DispatchPlan plan = Build(SmallRule(0), Rows(rows), RingOfReplicas(), limits);
  for (const ServiceDispatch& dispatch : plan.services()) {
    EXPECT_NEAR(static_cast<double>(dispatch.num_assignments()), 64.0 * 8 / 4, 64);
  }
}

TEST(DispatchPlanTest, WhatAMessageCostsInRowsFollowsFromTheWeights) {
  EXPECT_EQ(MessageRows(800'000), 32);    // as long as reading them
  EXPECT_EQ(MessageRows(88'000'000), 0);  // a large model's: asking costs nothing beside them
  EXPECT_EQ(MessageRows(1), 32 * 800'000);
  EXPECT_EQ(MessageRows(1'600'000, 8), 4);
}

TEST(DispatchPlanTest, UsesOnlyUsableServicesAndNamesExpertsWithout) {
  const Assignments assignments = Rows({{0, 7}, {5, 2}});
  const std::vector<uint8_t> without_first = {0, 1, 1, 1};
  DispatchLimits limits;
  limits.usable_services = without_first;
  const DispatchPlan plan = Build(SmallRule(0), assignments, OnServices(4, 2, 0), limits);
  EXPECT_THAT(plan.services()[0].row_ids, IsEmpty());
  DispatchPlan failed;
  const absl::Status status =
      BuildDispatchPlan(SmallRule(0), assignments, OnServices(4, 1, 0), limits, &failed);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "layer 0: no usable service has expert 0");
  EXPECT_EQ(failed.num_rows(), 0);
}

TEST(DispatchPlanTest, RefusesMoreRowsThanAServiceTakes) {
  DispatchLimits limits;
  limits.max_rows_per_service = 2;
  DispatchPlan plan;
  const absl::Status status = BuildDispatchPlan(SmallRule(0), Rows({{0, 1}, {0, 1}, {0, 4}}),
                                                OnServices(2, 1, 0), limits, &plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 rows for service 0, which takes 2"));
}

TEST(DispatchPlanTest, RefusesIdsOutOfRange) {
  for (const int32_t id : {8, 1000, std::numeric_limits<int32_t>::max(), MarkDropped(8)}) {
    DispatchPlan plan;
    const absl::Status status = BuildDispatchPlan(SmallRule(0), Rows({{0, 1}, {2, id}}),
                                                  OnServices(2, 1, 0), DispatchLimits(), &plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_THAT(std::string(status.message()), HasSubstr("of row 1 is not in [0, 8)"));
  }
  DispatchPlan plan;
  EXPECT_EQ(BuildDispatchPlan(SmallRule(0), Rows({{kNoExpert, kNoExpert}}), OnServices(2, 1, 0),
                              DispatchLimits(), &plan)
                .code(),
            absl::StatusCode::kInvalidArgument)
      << "a row without experts must be listed as refused";
}

TEST(DispatchPlanTest, RefusesMoreAssignmentsThanPlacesWithoutAllocating) {
  Assignments assignments;
  assignments.num_rows = int64_t{1} << 30;
  assignments.top_k = 0;
  const PlacementShape shape = PlacementShape::Make(8, {false}, 0, 3);
  DispatchPlan plan;
  const absl::Status status =
      BuildDispatchPlan(LayerRule{LayerId(0), 8, 4, 3}, assignments,
                        Placement::SingleService(shape), DispatchLimits(), &plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(DispatchPlanTest, ValidateNamesTheRuleThatAnotherStepsPlanBreaks) {
  const Placement placement = OnServices(2, 1, 0);
  const Assignments planned = Rows({{0, 1}, {4, 5}});
  const DispatchPlan plan = Build(SmallRule(0), planned, placement);
  const auto broken = [&](const Assignments& assignments, const Placement& other,
                          const DispatchLimits& limits = DispatchLimits()) {
    return std::string(ValidateDispatchPlan(plan, assignments, other, limits).message());
  };
  EXPECT_THAT(broken(Rows({{0, 1}}), placement), HasSubstr("R1"));
  EXPECT_THAT(broken(Rows({{0, 1}, {4, 6}}), placement), HasSubstr("R1"));
  EXPECT_THAT(broken(Rows({{1, 0}, {4, 5}}), placement), HasSubstr("R1"));
  EXPECT_THAT(broken(planned, placement.WithEpoch(Epoch(9))), HasSubstr("R4"));
  EXPECT_THAT(broken(planned, OnServices(3, 1, 0)), HasSubstr("R4"));
  Placement::Table swapped = {{}};
  for (int32_t id = 0; id < 8; ++id) swapped[0].push_back({ServiceId(id < 4 ? 1 : 0)});
  EXPECT_THAT(broken(planned, *Placement::Make(placement.epoch(), placement.shape(), 2, swapped)),
              HasSubstr("R4"));
  DispatchLimits limits;
  const std::vector<uint8_t> usable = {1, 0};
  limits.usable_services = usable;
  EXPECT_THAT(broken(planned, placement, limits), HasSubstr("R6"));
}

}  // namespace
}  // namespace moebius
