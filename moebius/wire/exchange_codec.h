// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/attention/head_map.h"
#include "moebius/base/strong_id.h"
#include "moebius/tensor/rows.h"
#include "moebius/transport/frame/message.h"
#include "moebius/wire/row_codec.h"

namespace moebius {

// What attention ranks ask one another in a layer of a step. Step, attempt, layer and round travel
// in the header; an answer has them too.
//
// KV request    u32 spans, u16 first KV head, u16 KV heads, then each: u64 session, u32 span
// KV reply      status; rows [positions, KV row width] bf16: of each span, in the order of the
//               request, the positions that the session has after the step. A row is one position,
//               the same for every tier: k of the KV heads asked for, then v of them; MLA: normed
//               latent, then roped key.
// query states  u32 parts, then each: u64 session, i64 first position, u32 rows;
//               rows [Σ rows · heads, head size] bf16: rotated, MLA: not absorbed
// state reply   status; rows [states, v head size + 2] fp32: acc | m | l of each (row, head, span
//               of the answering rank before the part's own), in this order, spans ascending
// head request  u8 phase (0 queries, 1 outputs), u32 rank that asks, u16 first query head, u16
// heads head reply    status; rows [rows · heads, head size or v head size] bf16: queries of the
// answering
//               rank's rows, or outputs of the asking rank's

/// Most spans or parts of one message.
inline constexpr uint32_t kMaxExchangeParts = 4096;

/// A whole span of a session.
struct SessionSpan {
  SessionId session;
  int64_t span = 0;
  friend bool operator==(const SessionSpan&, const SessionSpan&) = default;
};

/// Consecutive rows of a session that ask for their states.
struct QueriedRows {
  SessionId session;
  int64_t position_begin = 0;
  int64_t num_rows = 0;
  friend bool operator==(const QueriedRows&, const QueriedRows&) = default;
};

/// Whole spans, of some KV heads; a latent is of all heads and counts as one.
struct KvRequest {
  std::vector<SessionSpan> spans;
  HeadRange kv_heads;
};

/// What the ranks of a group that shares heads read of one another.
enum class HeadPhase : uint8_t {
  kQueries = 0,  // of the answering rank's rows
  kOutputs = 1,  // of the asking rank's rows
};
inline constexpr int kNumHeadPhases = 2;
struct HeadRequest {
  HeadPhase phase = HeadPhase::kQueries;
  int32_t rank = 0;  // that asks
  HeadRange heads;   // query heads
};

constexpr uint64_t KvRequestMetadataBytes(uint64_t num_spans) { return 8 + 12 * num_spans; }
constexpr uint64_t QueryStatesMetadataBytes(uint64_t num_parts) { return 4 + 20 * num_parts; }

/// `key.kind` is the message's kind. At most kMaxExchangeParts spans.
Message BuildKvRequest(const MessageKey& key, absl::Span<const SessionSpan> spans,
                       HeadRange kv_heads);
absl::StatusOr<KvRequest> ParseKvRequest(const Message& message);

Message BuildHeadRequest(const MessageKey& key, const HeadRequest& request);
absl::StatusOr<HeadRequest> ParseHeadRequest(const Message& message);

/// `queries`: [Σ rows · heads, head size] bf16 without gaps, shared.
Message BuildQueryStates(const MessageKey& key, absl::Span<const QueriedRows> parts,
                         SharedBytes queries, int64_t num_query_rows, int64_t head_size);
struct ReceivedQueries {
  std::vector<QueriedRows> parts;
  ReceivedRows queries;  // [Σ rows, heads * head size]
};
absl::StatusOr<ReceivedQueries> ParseQueryStates(const Message& message, int64_t num_heads,
                                                 int64_t head_size);

/// States of a message, and what keeps them alive.
struct ReceivedStates {
  SharedBytes bytes;
  FloatRows rows;  // [states, v head size + 2]: acc | m | l
};
Message BuildStateReply(const MessageKey& key, SharedBytes states, int64_t num_states,
                        int64_t width);
/// The states, or the failure that the answer carries, or INVALID_ARGUMENT when it is neither.
absl::StatusOr<ReceivedStates> ParseStateReply(const Message& message, int64_t num_states,
                                               int64_t width);

/// The largest answers: what to reserve.
uint64_t MaxKvReplyBytes(int64_t num_rows, int64_t width);
uint64_t MaxStateReplyBytes(int64_t num_states, int64_t width);

}  // namespace moebius
