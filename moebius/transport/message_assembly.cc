// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/message_assembly.h"

#include <algorithm>
#include <utility>

#include "moebius/base/check.h"

namespace moebius {
namespace {

// What vector loads like, and more than any dtype needs.
constexpr uintptr_t kRowAlignment = 16;

bool SameMessage(const FrameHeader& a, const FrameHeader& b) {
  return MessageOf(a).key == MessageOf(b).key && a.parts == b.parts && a.num_rows == b.num_rows &&
         a.row_width == b.row_width && a.dtype == b.dtype && a.metadata_bytes == b.metadata_bytes;
}

bool IsAligned(const SharedBytes& bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % kRowAlignment == 0;
}

void Split(const SharedBytes& body, uint32_t metadata_bytes, Message* message) {
  message->metadata = body.Slice(0, metadata_bytes);
  message->rows = body.Slice(metadata_bytes, body.size());
}

}  // namespace

void MessageAssembly::Abandon() {
  if (!current_.has_value()) return;
  if (claim_.has_value()) counters_.OnDropped(DropReason::kAbandoned);
  claim_.reset();
  builder_.reset();
  current_.reset();
}

void MessageAssembly::Begin(const FrameHeader& header) {
  Abandon();
  current_ = header;
  if (auto claim = table_.Match(source_, lane_, MessageOf(header), MessageBytes(header))) {
    claim_.emplace(*std::move(claim));
  }
  if (!claim_.has_value()) {
    counters_.OnDropped(DropReason::kUnreserved);
  } else if (header.parts > 1) {
    builder_.emplace(buffers_.Make(MessageBytes(header)));
  }
}

Message MessageAssembly::TakeSinglePart(const FrameHeader& header, Payload payload) {
  Message message = MessageOf(header);
  if (payload.empty()) return message;
  if (payload.size() == 1) {
    Split(payload[0], header.metadata_bytes, &message);
    if (IsAligned(message.rows)) return message;
  }
  // Sent without a copy from one process to another part of it: metadata, padding and rows are
  // still the sender's own pieces.
  const size_t bytes = PayloadBytes(payload);
  if (payload.size() >= 2 && payload.back().size() == bytes - header.metadata_bytes &&
      IsAligned(payload.back())) {
    const Payload metadata = SlicePayload(payload, 0, header.metadata_bytes);
    BytesBuilder builder = buffers_.Make(header.metadata_bytes);
    CopyPayload(metadata, builder.data());
    counters_.OnCopied(header.metadata_bytes);
    message.metadata = std::move(builder).Share();
    message.rows = payload.back();
    return message;
  }
  BytesBuilder builder = buffers_.Make(bytes);
  CopyPayload(payload, builder.data());
  counters_.OnCopied(bytes);
  Split(std::move(builder).Share(), header.metadata_bytes, &message);
  return message;
}

void MessageAssembly::Add(const FrameHeader& header, Payload payload) {
  const bool continues =
      current_.has_value() && header.part == current_->part + 1 && SameMessage(header, *current_);
  if (header.part == 0) {
    Begin(header);
  } else if (continues) {
    current_ = header;
  } else {
    // The beginning of this message was never here (its sender gave up, or it is hostile).
    Abandon();
    current_ = header;
    counters_.OnDropped(DropReason::kUnreserved);
  }
  if (claim_.has_value() && header.parts > 1) {
    const uint64_t begin = PartBytes(builder_->size(), header.parts) * header.part;
    MOEBIUS_CHECK_LE(begin + header.payload_bytes, builder_->size());
    CopyPayload(payload, builder_->data() + begin);
    counters_.OnCopied(header.payload_bytes);
  }
  if (header.part + 1 < header.parts) return;
  std::optional<ReservationTable::Claim> claim = std::move(claim_);
  claim_.reset();
  current_.reset();
  if (!claim.has_value()) return;
  Message message;
  if (header.parts > 1) {
    message = MessageOf(header);
    BytesBuilder whole = std::move(*builder_);
    builder_.reset();
    Split(std::move(whole).Share(), header.metadata_bytes, &message);
  } else {
    message = TakeSinglePart(header, std::move(payload));
  }
  if (claim->Deliver(lane_, std::move(message))) {
    counters_.OnDelivered();
  } else {
    counters_.OnDropped(DropReason::kEnded);
  }
}

}  // namespace moebius
