// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/exchange_codec.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/tensor/buffer.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

const MessageKey kKvKey{.kind = kKvRequestKind, .step = 9, .attempt = 1, .layer = 3, .round = 2};
const MessageKey kQueryKey{.kind = kQueryStatesKind, .step = 9, .layer = 3};

TEST(ExchangeCodecTest, BringsKvRequestsInTheStatedBytes) {
  const std::vector<SessionSpan> spans = {{SessionId(7), 0}, {SessionId(1), 70000}};
  const Message message = BuildKvRequest(kKvKey, spans, {2, 5});
  EXPECT_EQ(message.metadata.size(), KvRequestMetadataBytes(2));
  EXPECT_EQ(message.key, kKvKey);
  const auto request = ParseKvRequest(message);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->spans, spans);
  EXPECT_EQ(request->kv_heads, (HeadRange{2, 5}));
}

TEST(ExchangeCodecTest, BringsHeadRequestsAndRefusesOthers) {
  const MessageKey key{.kind = kHeadRequestKind, .step = 9, .layer = 3, .round = 1};
  const Message message =
      BuildHeadRequest(key, {.phase = HeadPhase::kOutputs, .rank = 7, .heads = {12, 16}});
  EXPECT_EQ(message.metadata.size(), 9u);
  const auto request = ParseHeadRequest(message);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->phase, HeadPhase::kOutputs);
  EXPECT_EQ(request->rank, 7);
  EXPECT_EQ(request->heads, (HeadRange{12, 16}));
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}}) {
    Message cut = message;
    cut.metadata = message.metadata.Slice(0, bytes);
    EXPECT_FALSE(ParseHeadRequest(cut).ok()) << bytes;
  }
  EXPECT_FALSE(ParseHeadRequest(BuildHeadRequest(key, {.heads = {3, 3}})).ok());
  EXPECT_FALSE(
      ParseHeadRequest(BuildHeadRequest(key, {.phase = HeadPhase{2}, .heads = {0, 1}})).ok());
  EXPECT_FALSE(ParseHeadRequest(BuildHeadRequest(key, {.rank = -1, .heads = {0, 1}})).ok());
}

TEST(ExchangeCodecTest, BringsQueriesAndStates) {
  const std::vector<QueriedRows> parts = {{SessionId(7), 100, 2}, {SessionId(1), 4, 1}};
  RowBatch<Bf16> queries(3 * 2, 5);
  for (int64_t r = 0; r < 6; ++r) {
    for (int64_t c = 0; c < 5; ++c)
      queries.rows().row(r)[c] = ToBf16(static_cast<float>(8 * r + c));
  }
  const Message message = BuildQueryStates(kQueryKey, parts, CopyRows(queries.rows()), 6, 5);
  EXPECT_EQ(message.metadata.size(), QueryStatesMetadataBytes(2));
  const auto received = ParseQueryStates(message, 2, 5);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->parts, parts);
  EXPECT_EQ(received->queries.rows.num_rows, 3);
  EXPECT_EQ(ToFloat(received->queries.rows.row(2)[9]), 44.0f);

  const std::vector<float> states = {1, 2, 3, 4, 5, 6, 7, 8};
  const Message reply = BuildStateReply(
      {.kind = kStateReplyKind},
      SharedBytes::Copy(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(states.data()), 32)),
      2, 4);
  const auto parsed = ParseStateReply(reply, 2, 4);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rows.row(1)[3], 8.0f);
  EXPECT_THAT(std::string(ParseStateReply(reply, 4, 2).status().message()), HasSubstr("4 of 2"));
  const absl::Status failure = absl::UnavailableError("gone");
  const Message failed = BuildFailedReply({.kind = kStateReplyKind}, failure);
  EXPECT_EQ(ParseStateReply(failed, 2, 4).status().message(), "gone");
}

TEST(ExchangeCodecTest, RefusesWhatNoRankSends) {
  Message message = BuildKvRequest(kKvKey, std::vector<SessionSpan>{{SessionId(7), 1}}, {0, 1});
  for (const uint32_t count : {0u, 2u, kMaxExchangeParts + 1, 0xffffffffu}) {
    ByteWriter out;
    out.Write(count);
    out.WriteArray(message.metadata.span().subspan(4));
    Message hostile = message;
    hostile.metadata = out.Share();
    EXPECT_FALSE(ParseKvRequest(hostile).ok()) << count;
    EXPECT_FALSE(ParseQueryStates(hostile, 1, 1).ok()) << count;
  }
  EXPECT_FALSE(ParseKvRequest(Message()).ok());
  EXPECT_FALSE(ParseQueryStates(Message(), 1, 1).ok());
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t position : {int64_t{-1}, kMax, kMax - 1}) {
    RowBatch<Bf16> queries(2, 5);
    const std::vector<QueriedRows> parts = {{SessionId(7), position, 1}};
    EXPECT_FALSE(
        ParseQueryStates(BuildQueryStates(kQueryKey, parts, CopyRows(queries.rows()), 2, 5), 2, 5)
            .ok());
  }
  // Rows that are not the parts' rows.
  RowBatch<Bf16> queries(2, 5);
  const std::vector<QueriedRows> parts = {{SessionId(7), 3, 2}};
  EXPECT_FALSE(
      ParseQueryStates(BuildQueryStates(kQueryKey, parts, CopyRows(queries.rows()), 2, 5), 2, 5)
          .ok());
}

}  // namespace
}  // namespace moebius
