// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/status.h"

#include <memory>

#include "gtest/gtest.h"

namespace moebius {
namespace {

absl::StatusOr<std::unique_ptr<int>> MakeNumber(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b, int* evaluations) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<int> left, MakeNumber((++*evaluations, a)));
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<int> right, MakeNumber((++*evaluations, b)));
  return *left + *right;
}

absl::Status CheckTwice(const absl::Status& first, const absl::Status& second, int* reached) {
  MOEBIUS_RETURN_IF_ERROR(first);
  ++*reached;
  MOEBIUS_RETURN_IF_ERROR(second);
  ++*reached;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignUnwrapsMoveOnlyValues) {
  int evaluations = 0;
  const absl::StatusOr<int> sum = Sum(2, 3, &evaluations);
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(*sum, 5);
  EXPECT_EQ(evaluations, 2);
}

TEST(StatusMacrosTest, AssignPassesTheFirstFailureOn) {
  int evaluations = 0;
  const absl::StatusOr<int> sum = Sum(-2, 3, &evaluations);
  EXPECT_EQ(sum.status(), absl::OutOfRangeError("negative"));
  EXPECT_EQ(evaluations, 1);
}

TEST(StatusMacrosTest, ReturnStopsAtTheFirstFailure) {
  int reached = 0;
  EXPECT_TRUE(CheckTwice(absl::OkStatus(), absl::OkStatus(), &reached).ok());
  EXPECT_EQ(reached, 2);
  EXPECT_EQ(CheckTwice(absl::OkStatus(), absl::AbortedError("stale"), &reached),
            absl::AbortedError("stale"));
  EXPECT_EQ(reached, 3);
}

}  // namespace
}  // namespace moebius
