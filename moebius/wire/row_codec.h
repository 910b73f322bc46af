// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/tensor/rows.h"
#include "moebius/transport/frame/message.h"

namespace moebius {

/// Bf16 rows of a message, and what keeps them alive.
struct ReceivedRows {
  SharedBytes bytes;
  Bf16Rows rows;
};

/// The rows in memory of their own, row after row: what a message shares.
SharedBytes CopyRows(Bf16Rows rows);

/// Puts rows into a message: `bytes` is [num_rows, width] bf16 without gaps, shared, not copied.
void SetRows(Message& message, SharedBytes bytes, int64_t num_rows, int64_t width);

/// The rows of a message whose shape must be exactly this, on a 2-byte boundary at least (the
/// transport gives 16). INVALID_ARGUMENT says what came instead.
absl::StatusOr<ReceivedRows> RowsOf(const Message& message, int64_t num_rows, int64_t width);

/// An answer with rows (kDispatchReplyKind, kAttentionReplyKind), or the failure of what was asked.
Message BuildReply(const MessageKey& key, SharedBytes rows, int64_t num_rows, int64_t width);
Message BuildFailedReply(const MessageKey& key, const absl::Status& status);

/// True when the message is a well-formed answer that carries a failure, which goes to `failure`.
bool IsFailedReply(const Message& message, absl::Status* failure);

/// The rows of an answer, or the failure that it carries, or INVALID_ARGUMENT when it is neither.
absl::StatusOr<ReceivedRows> ParseReply(const Message& message, int64_t num_rows, int64_t width);

/// The largest message that BuildReply or BuildFailedReply makes: what to reserve.
uint64_t MaxReplyBytes(int64_t num_rows, int64_t width);

}  // namespace moebius
