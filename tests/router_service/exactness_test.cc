// SPDX-License-Identifier: Apache-2.0
#include "router_service/exactness.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SessionRows Rows(int64_t begin, int64_t num_rows, int64_t position) {
  SessionRows rows;
  rows.row_begin = begin;
  rows.num_rows = num_rows;
  rows.position_begin = position;
  return rows;
}

TEST(RowsOutcomeTest, NothingHappenedToRowsThatNobodyTouched) {
  StepResult result;
  result.Begin(6);
  const RowsOutcome outcome = OutcomeOf(result, Rows(2, 3, 0));
  EXPECT_TRUE(outcome.failure.ok());
  EXPECT_EQ(outcome.effects.dropped, 0);
  EXPECT_EQ(outcome.effects.rerouted, 0);
  EXPECT_FALSE(outcome.effects.bias_version.has_value());
}

TEST(RowsOutcomeTest, CountsTheSessionsOwnRowsAlone) {
  StepResult result;
  result.Begin(6);
  result.dropped_of_row = {9, 9, 1, 0, 2, 9};
  result.rerouted_of_row = {9, 9, 0, 4, 0, 9};
  const RowsOutcome outcome = OutcomeOf(result, Rows(2, 3, 0));
  EXPECT_EQ(outcome.effects.dropped, 3);
  EXPECT_EQ(outcome.effects.rerouted, 4);
}

TEST(RowsOutcomeTest, NamesThePositionThatWasRejectedAndWhy) {
  StepResult result;
  result.Begin(6);
  result.rejected_rows = {{1, LayerId(2), 5}, {3, LayerId(4), 7}};
  EXPECT_TRUE(OutcomeOf(result, Rows(4, 2, 0)).failure.ok());
  const absl::Status failure = OutcomeOf(result, Rows(2, 2, 100)).failure;
  EXPECT_TRUE(absl::IsResourceExhausted(failure));
  EXPECT_EQ(std::string(failure.message()),
            "layer 4 has no room for position 101: an expert of it takes 7 rows of a step");
}

TEST(RowsOutcomeTest, NamesThePositionWhoseValuesAreNotFinite) {
  StepResult result;
  result.Begin(6);
  result.nonfinite_rows = {0, 3};
  EXPECT_TRUE(OutcomeOf(result, Rows(1, 2, 0)).failure.ok());
  const absl::Status failure = OutcomeOf(result, Rows(3, 2, 8)).failure;
  EXPECT_TRUE(absl::IsInvalidArgument(failure));
  EXPECT_THAT(std::string(failure.message()), HasSubstr("position 8 are not finite"));
}

TEST(DescribeExactnessTest, IsExactWhereNothingWasTouchedAndSaysWhyNot) {
  CapacityPolicy capacity;
  capacity.factor = 1.25;
  EXPECT_TRUE(DescribeExactness({}, capacity).exact());
  EXPECT_THAT(DescribeExactness({}, capacity).reasons, IsEmpty());
  const Exactness dropped = DescribeExactness({168, 0, std::nullopt}, capacity);
  EXPECT_FALSE(dropped.exact());
  EXPECT_EQ(dropped.dropped, 168);
  EXPECT_THAT(dropped.reasons,
              ElementsAre("168 dropped by capacity factor 1.25 by weight, drop; of all rows of a "
                          "step"));
  capacity.overflow = CapacityOverflow::kNextBest;
  EXPECT_THAT(DescribeExactness({2, 3, std::nullopt}, capacity).reasons,
              ElementsAre("2 dropped, 3 rerouted by capacity factor 1.25 by weight, next_best; of "
                          "all rows of a step"));
}

TEST(DescribeExactnessTest, SaysWhatBitsOfThePerDegreeSumDependOn) {
  EXPECT_THAT(DescribeExactness({}, CapacityPolicy(), {.num_ranks = 1}).reasons,
              ElementsAre("attention summed per degree over 1 rank: its bits depend on the ranks"));
  const Exactness exactness = DescribeExactness({}, CapacityPolicy(), {.num_ranks = 4});
  EXPECT_FALSE(exactness.exact());
  EXPECT_THAT(
      exactness.reasons,
      ElementsAre("attention summed per degree over 4 ranks: its bits depend on the ranks"));
  EXPECT_THAT(
      DescribeExactness({}, CapacityPolicy(), {3, AttentionLayout::kStriped}).reasons,
      ElementsAre(
          "attention summed per degree over 3 ranks, striped: its bits depend on the ranks"));
}

TEST(DescribeExactnessTest, SaysWhichBiasesWereInForce) {
  RowEffects effects;
  effects.Add({0, 0, 4});
  effects.Add({0, 0, 6});
  effects.Add({0, 0, std::nullopt});
  const Exactness exactness = DescribeExactness(effects, CapacityPolicy());
  EXPECT_TRUE(exactness.bias_override);
  EXPECT_FALSE(exactness.exact());
  EXPECT_THAT(exactness.reasons, ElementsAre("the balancer's biases, version 6, in force instead "
                                             "of the checkpoint's"));
}

}  // namespace
}  // namespace moebius
