// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

#include "moebius/tensor/dtype.h"
#include "moebius/transport/frame/frame_header.h"
#include "moebius/transport/frame/shared_bytes.h"

namespace moebius {

/// Which message of a sender this is. With the sender's incarnation it is PROTOCOL's frame key.
struct MessageKey {
  FrameKind kind;
  uint64_t step = 0;
  uint32_t attempt = 0;
  uint32_t micro_batch = 0;
  uint32_t layer = 0;
  uint32_t round = 0;

  friend auto operator<=>(const MessageKey&, const MessageKey&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const MessageKey& key) {
    return H::combine(std::move(hash), key.kind.value(), key.step, key.attempt, key.micro_batch,
                      key.layer, key.round);
  }
};

/// What the rooms above send and receive: some metadata, then rows. The bytes are shared, so that a
/// message costs no copy where nobody leaves the process.
struct Message {
  MessageKey key;
  uint64_t incarnation = 0;  // of the sending process; the transport writes it
  uint64_t term = 0;
  uint64_t epoch = 0;
  uint32_t budget_ms = 0;  // time that was left when it was sent; 0: none stated
  uint64_t num_rows = 0;
  uint32_t row_width = 0;  // elements
  DType dtype = DType::kUnspecified;
  /// When received it ends with the padding: 0…63 zero bytes, up to a multiple of 64.
  SharedBytes metadata;
  /// [num_rows, row_width] of dtype, row-major; when received on a 16-byte boundary at least.
  SharedBytes rows;
};

/// Metadata with its padding, and rows.
uint64_t MessageBytes(const Message& message);

/// OK when every part of the message would pass ValidateFrameHeader at a receiver with `limits`
/// and `rows` has exactly the bytes of the shape; else INVALID_ARGUMENT, or RESOURCE_EXHAUSTED when
/// it is only too large.
absl::Status ValidateMessage(const Message& message, const FrameLimits& limits);

/// One frame: a part of a message, or one of the transport's own.
struct Frame {
  FrameHeader header;
  Payload payload;
};

/// Part `part` of `parts` of the message, sharing its bytes. Incarnation, sequence and checksum are
/// left for the sender's end of the link. The message must be valid.
Frame BuildFrame(const Message& message, uint32_t part, uint32_t parts);

/// The message that a header describes, without its bytes.
Message MessageOf(const FrameHeader& header);

}  // namespace moebius
