// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/exchange_codec.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/attention/step_plan.h"
#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

// RopeTable's bound on positions, as in ValidateStepPlan.
constexpr int64_t kMaxPosition = int64_t{1} << 24;
constexpr uint32_t kMaxRank = 1 << 20;

absl::Status Refuse(absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", why));
}

// The number of parts, checked against the bound and the bytes that are there.
absl::StatusOr<uint32_t> ReadCount(absl::string_view what, const Message& message, ByteReader& in) {
  const uint32_t count = in.Read<uint32_t>();
  if (!in.is_complete() || count == 0 || count > kMaxExchangeParts) {
    return Refuse(what, absl::StrCat(count, " parts in ", message.metadata.size(),
                                     " bytes, the limit is ", kMaxExchangeParts));
  }
  return count;
}

void WriteHeads(HeadRange heads, ByteWriter& out) {
  out.Write(static_cast<uint16_t>(heads.begin));
  out.Write(static_cast<uint16_t>(heads.size()));
}

HeadRange ReadHeads(ByteReader& in) {
  const int32_t begin = in.Read<uint16_t>();
  return {begin, begin + in.Read<uint16_t>()};
}

}  // namespace

Message BuildKvRequest(const MessageKey& key, absl::Span<const SessionSpan> spans,
                       HeadRange kv_heads) {
  MOEBIUS_CHECK_EQ(key.kind, kKvRequestKind);
  MOEBIUS_CHECK_LE(spans.size(), size_t{kMaxExchangeParts});
  ByteWriter out;
  out.Write(static_cast<uint32_t>(spans.size()));
  WriteHeads(kv_heads, out);
  for (const SessionSpan& span : spans) {
    out.Write(span.session.value());
    out.Write(static_cast<uint32_t>(span.span));
  }
  Message message;
  message.key = key;
  message.metadata = out.Share();
  return message;
}

absl::StatusOr<KvRequest> ParseKvRequest(const Message& message) {
  ByteReader in(message.metadata.span());
  MOEBIUS_ASSIGN_OR_RETURN(const uint32_t count, ReadCount("KV request", message, in));
  KvRequest request;
  request.kv_heads = ReadHeads(in);
  for (uint32_t i = 0; i < count && in.is_complete(); ++i) {
    const SessionId session(in.Read<uint64_t>());
    request.spans.push_back({session, int64_t{in.Read<uint32_t>()}});
  }
  if (!in.AtEnd() || message.num_rows != 0) {
    return Refuse("KV request", "its length is not its content's");
  }
  if (request.kv_heads.empty()) return Refuse("KV request", "it asks for no head");
  return request;
}

Message BuildHeadRequest(const MessageKey& key, const HeadRequest& request) {
  MOEBIUS_CHECK_EQ(key.kind, kHeadRequestKind);
  ByteWriter out;
  out.Write(static_cast<uint8_t>(request.phase));
  out.Write(static_cast<uint32_t>(request.rank));
  WriteHeads(request.heads, out);
  Message message;
  message.key = key;
  message.metadata = out.Share();
  return message;
}

absl::StatusOr<HeadRequest> ParseHeadRequest(const Message& message) {
  ByteReader in(message.metadata.span());
  const uint8_t phase = in.Read<uint8_t>();
  const uint32_t rank = in.Read<uint32_t>();
  const HeadRange heads = ReadHeads(in);
  if (!in.AtEnd() || message.num_rows != 0) {
    return Refuse("head request", "its length is not its content's");
  }
  if (phase >= kNumHeadPhases || rank > kMaxRank || heads.empty()) {
    return Refuse("head request", absl::StrCat("phase ", int{phase}, ", rank ", rank, ", ",
                                               heads.size(), " heads"));
  }
  return HeadRequest{static_cast<HeadPhase>(phase), static_cast<int32_t>(rank), heads};
}

Message BuildQueryStates(const MessageKey& key, absl::Span<const QueriedRows> parts,
                         SharedBytes queries, int64_t num_query_rows, int64_t head_size) {
  MOEBIUS_CHECK_EQ(key.kind, kQueryStatesKind);
  MOEBIUS_CHECK_LE(parts.size(), size_t{kMaxExchangeParts});
  ByteWriter out;
  out.Write(static_cast<uint32_t>(parts.size()));
  for (const QueriedRows& part : parts) {
    out.Write(part.session.value());
    out.Write(part.position_begin);
    out.Write(static_cast<uint32_t>(part.num_rows));
  }
  Message message;
  message.key = key;
  message.metadata = out.Share();
  SetRows(message, std::move(queries), num_query_rows, head_size);
  return message;
}

absl::StatusOr<ReceivedQueries> ParseQueryStates(const Message& message, int64_t num_heads,
                                                 int64_t head_size) {
  ByteReader in(message.metadata.span());
  MOEBIUS_ASSIGN_OR_RETURN(const uint32_t count, ReadCount("query of states", message, in));
  ReceivedQueries received;
  int64_t num_rows = 0;
  for (uint32_t i = 0; i < count && in.is_complete(); ++i) {
    QueriedRows part;
    part.session = SessionId(in.Read<uint64_t>());
    part.position_begin = in.Read<int64_t>();
    part.num_rows = in.Read<uint32_t>();
    if (part.num_rows > kMaxPosition || part.position_begin < 0 ||
        part.position_begin > kMaxPosition - part.num_rows) {
      return Refuse("query of states",
                    absl::StrCat(part.num_rows, " rows from position ", part.position_begin));
    }
    num_rows += part.num_rows;  // below 2^36
    received.parts.push_back(part);
  }
  if (!in.AtEnd()) return Refuse("query of states", "its length is not its content's");
  MOEBIUS_ASSIGN_OR_RETURN(received.queries, RowsOf(message, num_rows * num_heads, head_size));
  received.queries.rows = Bf16Rows(received.queries.rows.data, num_rows, num_heads * head_size);
  return received;
}

Message BuildStateReply(const MessageKey& key, SharedBytes states, int64_t num_states,
                        int64_t width) {
  MOEBIUS_CHECK_EQ(states.size(), static_cast<size_t>(num_states * width) * sizeof(float));
  Message message;
  message.key = key;
  ByteWriter out;
  out.WriteText(EncodeStatus(absl::OkStatus()));
  message.metadata = out.Share();
  message.num_rows = static_cast<uint64_t>(num_states);
  message.row_width = static_cast<uint32_t>(width);
  message.dtype = DType::kF32;
  message.rows = std::move(states);
  return message;
}

absl::StatusOr<ReceivedStates> ParseStateReply(const Message& message, int64_t num_states,
                                               int64_t width) {
  ByteReader in(message.metadata.span());
  const std::string status = in.ReadText(kMaxStatusBytes);
  if (!in.AtEnd()) return Refuse("state reply", "its metadata is not its content's length");
  MOEBIUS_RETURN_IF_ERROR(DecodeStatus(status));
  if (message.dtype != DType::kF32 || message.num_rows != static_cast<uint64_t>(num_states) ||
      message.row_width != static_cast<uint32_t>(width)) {
    return Refuse("state reply", absl::StrCat(message.num_rows, " rows of ", message.row_width, " ",
                                              DTypeName(message.dtype), " came, ", num_states,
                                              " of ", width, " F32 are needed"));
  }
  MOEBIUS_CHECK_EQ(message.rows.size(), static_cast<size_t>(num_states * width) * sizeof(float));
  MOEBIUS_CHECK_EQ(reinterpret_cast<uintptr_t>(message.rows.data()) % alignof(float), 0u);
  const auto* data = reinterpret_cast<const float*>(message.rows.data());
  return ReceivedStates{message.rows, FloatRows(data, num_states, width)};
}

uint64_t MaxKvReplyBytes(int64_t num_rows, int64_t width) { return MaxReplyBytes(num_rows, width); }

uint64_t MaxStateReplyBytes(int64_t num_states, int64_t width) {
  const uint64_t state_bytes = static_cast<uint64_t>(num_states * width) * sizeof(float);
  return std::max<uint64_t>(kMessageAlignment + state_bytes, kMaxStatusBytes + kMessageAlignment);
}

}  // namespace moebius
