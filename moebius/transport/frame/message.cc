// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/message.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr uint8_t kPadding[kMessageAlignment] = {};

uint64_t PaddedBytes(uint64_t bytes) {
  return (bytes + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

FrameHeader HeaderOf(const Message& message) {
  FrameHeader header;
  header.kind = message.key.kind;
  header.incarnation = message.incarnation;
  header.term = message.term;
  header.step = message.key.step;
  header.epoch = message.epoch;
  header.attempt = message.key.attempt;
  header.micro_batch = message.key.micro_batch;
  header.layer = message.key.layer;
  header.round = message.key.round;
  header.num_rows = message.num_rows;
  header.row_width = message.row_width;
  header.dtype = message.dtype;
  header.metadata_bytes = static_cast<uint32_t>(PaddedBytes(message.metadata.size()));
  header.budget_ms = message.budget_ms;
  return header;
}

}  // namespace

uint64_t MessageBytes(const Message& message) {
  return PaddedBytes(message.metadata.size()) + message.rows.size();
}

absl::Status ValidateMessage(const Message& message, const FrameLimits& limits) {
  if (!IsMessageKind(message.key.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: kind ", message.key.kind.value(), " belongs to the transport"));
  }
  if (message.metadata.size() > limits.max_metadata_bytes ||
      MessageBytes(message) > limits.max_message_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "message: ", message.metadata.size(), " bytes of metadata and ", message.rows.size(),
        " bytes of rows; the limits are ", limits.max_metadata_bytes, " and ",
        limits.max_message_bytes, " bytes in all"));
  }
  FrameHeader header = HeaderOf(message);
  header.incarnation = 1;
  header.parts = NumParts(MessageBytes(message), limits.max_payload_bytes);
  header.payload_bytes =
      std::min(PartBytes(MessageBytes(message), header.parts), MessageBytes(message));
  header.has_checksum = true;
  MOEBIUS_RETURN_IF_ERROR(ValidateFrameHeader(header, limits));
  if (MessageBytes(header) != MessageBytes(message)) {
    return absl::InvalidArgumentError(absl::StrCat("message: ", message.rows.size(),
                                                   " bytes of rows, the shape has ",
                                                   MessageBytes(header) - header.metadata_bytes));
  }
  return absl::OkStatus();
}

Frame BuildFrame(const Message& message, uint32_t part, uint32_t parts) {
  Frame frame;
  frame.header = HeaderOf(message);
  frame.header.part = part;
  frame.header.parts = parts;
  const uint64_t message_bytes = MessageBytes(message);
  const uint64_t part_bytes = PartBytes(message_bytes, parts);
  const uint64_t begin = part_bytes * part;
  const uint64_t end = std::min(begin + part_bytes, message_bytes);
  frame.header.payload_bytes = end - begin;
  Payload body;
  if (!message.metadata.empty()) {
    body.push_back(message.metadata);
    const size_t padding = frame.header.metadata_bytes - message.metadata.size();
    if (padding > 0) {
      body.push_back(SharedBytes::Borrow(absl::MakeConstSpan(kPadding, padding)));
    }
  }
  if (!message.rows.empty()) body.push_back(message.rows);
  frame.payload = parts == 1 ? std::move(body) : SlicePayload(body, begin, end);
  return frame;
}

Message MessageOf(const FrameHeader& header) {
  Message message;
  message.key = {header.kind,        header.step,  header.attempt,
                 header.micro_batch, header.layer, header.round};
  message.incarnation = header.incarnation;
  message.term = header.term;
  message.epoch = header.epoch;
  message.budget_ms = header.budget_ms;
  message.num_rows = header.num_rows;
  message.row_width = header.row_width;
  message.dtype = header.dtype;
  return message;
}

}  // namespace moebius
