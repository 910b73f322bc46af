// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/error_detail.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/random.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"
#include "moebius/wire/grpc/grpc_status.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"

namespace moebius {
namespace {

absl::Status Sample() {
  ErrorDetail detail;
  detail.retryable = false;
  detail.epoch_seen = 0;
  detail.epoch_needed = 9;
  detail.missing_experts = {3, 200};
  detail.host = "expert-2";
  return WithHint(WithDetail(absl::UnavailableError("no replica of expert 3"), detail),
                  "start another expert service");
}

void ExpectSample(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "no replica of expert 3");
  EXPECT_EQ(HintOf(status), "start another expert service");
  const ErrorDetail detail = DetailOf(status);
  EXPECT_EQ(detail.retryable, false);
  EXPECT_EQ(detail.epoch_seen, 0u);  // zero is not "unset"
  EXPECT_EQ(detail.epoch_needed, 9u);
  EXPECT_THAT(detail.missing_experts, ::testing::ElementsAre(3, 200));
  EXPECT_EQ(detail.host, "expert-2");
}

TEST(ErrorDetailTest, SurvivesTheDataPlaneAndGrpc) {
  ExpectSample(Sample());
  ExpectSample(DecodeStatus(EncodeStatus(Sample())));
  ExpectSample(FromGrpcStatus(ToGrpcStatus(Sample())));
  EXPECT_TRUE(DecodeStatus(EncodeStatus(absl::OkStatus())).ok());
  EXPECT_TRUE(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())).ok());
}

TEST(ErrorDetailTest, KeepsEveryCode) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "x");
    EXPECT_EQ(DecodeStatus(EncodeStatus(status)).code(), status.code());
    EXPECT_EQ(DetailOf(DecodeStatus(EncodeStatus(status))).retryable, IsRetryable(status));
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)).code(), status.code());
  }
}

TEST(ErrorDetailTest, NotHeldIsRetryableAfterARefresh) {
  const absl::Status status = DecodeStatus(EncodeStatus(NotHeldError({4, 7}, 11)));
  EXPECT_TRUE(IsNotHeld(status));
  EXPECT_EQ(status.message(), "NOT_HELD: experts 4, 7");
  EXPECT_EQ(DetailOf(status).retryable, true);
  EXPECT_EQ(DetailOf(status).epoch_seen, 11u);
  EXPECT_FALSE(IsNotHeld(absl::FailedPreconditionError("something else")));
}

TEST(ErrorDetailTest, BytesOfOthersAreNeverSuccess) {
  EXPECT_FALSE(DecodeStatus("\xff\xff\xff").ok());
  EXPECT_FALSE(DecodeStatus(std::string(1, '\0')).ok());
  EXPECT_EQ(DecodeStatus(std::string(kMaxStatusBytes + 1, 'a')).code(), absl::StatusCode::kUnknown);
  Random random(4);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = EncodeStatus(Sample());
    bytes[random.Below(bytes.size())] ^= static_cast<char>(1 << random.Below(8));
    EXPECT_FALSE(DecodeStatus(bytes).ok());
  }
}

TEST(ErrorDetailTest, LongTextsAreCutAndControlBytesReplaced) {
  std::string text(5000, 'x');
  text[2047] = '\xc3';  // half of a character at the cut
  text[2048] = '\xa4';
  const absl::Status status = DecodeStatus(EncodeStatus(absl::InternalError(text)));
  EXPECT_EQ(status.message(), std::string(2047, 'x'));
  EXPECT_EQ(DecodeStatus(EncodeStatus(absl::InternalError("\x1b[2J"))).message(), "?[2J");
}

TEST(RowCodecTest, AReplyBringsRowsOrItsFailure) {
  RowBatch<Bf16> rows(3, 4);
  for (int64_t i = 0; i < 12; ++i) rows.rows().data[i] = ToBf16(static_cast<float>(i));
  const MessageKey key{kDispatchReplyKind, 5};
  const Message reply = BuildReply(key, CopyRows(rows.rows()), 3, 4);
  const auto parsed = ParseReply(reply, 3, 4);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToFloat(parsed->rows.row(2)[3]), 11.0f);
  EXPECT_LE(MessageBytes(reply), MaxReplyBytes(3, 4));
  EXPECT_EQ(ParseReply(reply, 4, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseReply(reply, 3, 5).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectSample(ParseReply(BuildFailedReply(key, Sample()), 3, 4).status());
  EXPECT_TRUE(ParseReply(BuildReply(key, SharedBytes(), 0, 4), 0, 4).ok());
  // Neither rows nor a reason.
  EXPECT_FALSE(ParseReply(Message(), 0, 4).ok());
}

}  // namespace
}  // namespace moebius
