// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/error.h"

#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(ErrorTest, HintKeepsCodeAndMessage) {
  const absl::Status status =
      WithHint(absl::InvalidArgumentError("dtype F16"), "pass --dtype=bf16");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "dtype F16");
  EXPECT_EQ(HintOf(status), "pass --dtype=bf16");
}

TEST(ErrorTest, LastHintWins) {
  EXPECT_EQ(HintOf(WithHint(WithHint(absl::NotFoundError("x"), "first"), "second")), "second");
}

TEST(ErrorTest, OkStatusCarriesNoHint) {
  const absl::Status status = WithHint(absl::OkStatus(), "nothing to do");
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(HintOf(status), "");
  EXPECT_EQ(HintOf(absl::InternalError("no hint")), "");
}

TEST(ErrorTest, ContextComesBeforeTheMessageAndKeepsPayloads) {
  absl::Status status = WithHint(absl::NotFoundError("no config.json"), "is this a model folder?");
  status.SetPayload("moebius/other", absl::Cord("kept"));
  const absl::Status with_context = WithContext(status, "models/demo");
  EXPECT_EQ(with_context.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(with_context.message(), "models/demo: no config.json");
  EXPECT_EQ(HintOf(with_context), "is this a model folder?");
  EXPECT_EQ(with_context.GetPayload("moebius/other"), absl::Cord("kept"));
}

TEST(ErrorTest, ContextOfOkIsOk) { EXPECT_TRUE(WithContext(absl::OkStatus(), "x").ok()); }

TEST(ErrorTest, OnlyLoadAndTimingAreWorthARetry) {
  EXPECT_TRUE(IsRetryable(absl::UnavailableError("")));
  EXPECT_TRUE(IsRetryable(absl::ResourceExhaustedError("")));
  EXPECT_TRUE(IsRetryable(absl::AbortedError("")));
  for (const absl::Status& status :
       {absl::OkStatus(), absl::InvalidArgumentError(""), absl::NotFoundError(""),
        absl::FailedPreconditionError(""), absl::DataLossError(""), absl::InternalError(""),
        absl::DeadlineExceededError(""), absl::CancelledError("")}) {
    EXPECT_FALSE(IsRetryable(status)) << status;
  }
}

}  // namespace
}  // namespace moebius
