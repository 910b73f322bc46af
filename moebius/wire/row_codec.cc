// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/row_codec.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/error_detail.h"

namespace moebius {

SharedBytes CopyRows(Bf16Rows rows) {
  const size_t row_bytes = static_cast<size_t>(rows.width) * sizeof(Bf16);
  BytesBuilder builder(static_cast<size_t>(rows.num_rows) * row_bytes);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    if (row_bytes > 0) {
      std::memcpy(builder.data() + static_cast<size_t>(row) * row_bytes, rows.row(row), row_bytes);
    }
  }
  return std::move(builder).Share();
}

void SetRows(Message& message, SharedBytes bytes, int64_t num_rows, int64_t width) {
  MOEBIUS_CHECK_EQ(bytes.size(), static_cast<size_t>(num_rows * width) * sizeof(Bf16));
  message.num_rows = static_cast<uint64_t>(num_rows);
  message.row_width = static_cast<uint32_t>(width);
  message.dtype = DType::kBF16;
  message.rows = std::move(bytes);
}

absl::StatusOr<ReceivedRows> RowsOf(const Message& message, int64_t num_rows, int64_t width) {
  if (message.dtype != DType::kBF16 || message.num_rows != static_cast<uint64_t>(num_rows) ||
      message.row_width != static_cast<uint32_t>(width)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kind ", message.key.kind.value(), ": ", message.num_rows, " rows of ", message.row_width,
        " ", DTypeName(message.dtype), " came, ", num_rows, " of ", width, " BF16 are needed"));
  }
  MOEBIUS_CHECK_EQ(message.rows.size(), static_cast<size_t>(num_rows * width) * sizeof(Bf16));
  MOEBIUS_CHECK_EQ(reinterpret_cast<uintptr_t>(message.rows.data()) % alignof(Bf16), 0u);
  const auto* data = reinterpret_cast<const Bf16*>(message.rows.data());
  return ReceivedRows{message.rows, Bf16Rows(data, num_rows, width)};
}

Message BuildReply(const MessageKey& key, SharedBytes rows, int64_t num_rows, int64_t width) {
  Message message;
  message.key = key;
  ByteWriter out;
  out.WriteText(EncodeStatus(absl::OkStatus()));
  message.metadata = out.Share();
  SetRows(message, std::move(rows), num_rows, width);
  return message;
}

Message BuildFailedReply(const MessageKey& key, const absl::Status& status) {
  MOEBIUS_CHECK(!status.ok());
  Message message;
  message.key = key;
  ByteWriter out;
  out.WriteText(EncodeStatus(status));
  message.metadata = out.Share();
  return message;
}

bool IsFailedReply(const Message& message, absl::Status* failure) {
  ByteReader in(message.metadata.span());
  const std::string status = in.ReadText(kMaxStatusBytes);
  if (!in.AtEnd() || status.empty() || message.num_rows > 0) return false;
  *failure = DecodeStatus(status);
  return true;
}

absl::StatusOr<ReceivedRows> ParseReply(const Message& message, int64_t num_rows, int64_t width) {
  ByteReader in(message.metadata.span());
  const std::string status = in.ReadText(kMaxStatusBytes);
  if (!in.AtEnd()) {
    return absl::InvalidArgumentError("reply: its metadata is not its content's length");
  }
  MOEBIUS_RETURN_IF_ERROR(DecodeStatus(status));
  return RowsOf(message, num_rows, width);
}

uint64_t MaxReplyBytes(int64_t num_rows, int64_t width) {
  const uint64_t row_bytes = static_cast<uint64_t>(num_rows * width) * sizeof(Bf16);
  return std::max<uint64_t>(kMessageAlignment + row_bytes, kMaxStatusBytes + kMessageAlignment);
}

}  // namespace moebius
