// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/base/strong_id.h"
#include "moebius/tensor/dtype.h"
#include "moebius/transport/frame/frame_limits.h"
#include "moebius/transport/frame/shared_bytes.h"

namespace moebius {

// The frame format. docs/wire_format.md has the table and a worked example.
//
// A message is metadata, then rows. It travels in one or more frames (parts). Each frame repeats
// the message's shape, so each frame is checked alone: its payload size follows from the shape and
// from (part, parts), and no offset or size is believed without that.

inline constexpr size_t kFrameHeaderBytes = 128;
inline constexpr uint16_t kWireVersion = 2;
// Magic and version keep their places in every version, so that two of them can name each other.
inline constexpr size_t kWireVersionOffset = 4;
/// Metadata is padded to this, parts are cut at it: rows start on a cache line where payload does.
inline constexpr uint64_t kMessageAlignment = 64;

/// What a frame means. [1, 16) belong to the transport, [16, 1024) to the rooms above it.
using FrameKind = StrongId<struct FrameKindTag, uint16_t>;
inline constexpr FrameKind kHelloKind{1};    // first frame of a link, both ways
inline constexpr FrameKind kBeatKind{2};     // "I live"; its sequence shows lost frames
inline constexpr FrameKind kCreditKind{3};   // frames consumed so far
inline constexpr FrameKind kGoodbyeKind{4};  // last frame of a link, with a reason
inline constexpr FrameKind kFirstMessageKind{16};
inline constexpr FrameKind kLastMessageKind{1023};

/// True for frames that carry messages of the rooms above.
inline bool IsMessageKind(FrameKind kind) {
  return kind >= kFirstMessageKind && kind <= kLastMessageKind;
}

/// A frame's header. Fields are in the order of the table in docs/wire_format.md.
struct FrameHeader {
  FrameKind kind;
  uint64_t incarnation = 0;  // of the sending process, never 0
  uint64_t term = 0;
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  uint32_t micro_batch = 0;
  uint32_t layer = 0;  // 0 where there is none
  uint32_t round = 0;
  uint32_t part = 0;
  uint32_t parts = 1;
  uint64_t num_rows = 0;   // of the message
  uint32_t row_width = 0;  // elements
  DType dtype = DType::kUnspecified;
  bool has_checksum = false;
  uint32_t metadata_bytes = 0;  // of the message, a multiple of kMessageAlignment
  uint32_t budget_ms = 0;       // remaining time when sent; 0: none stated
  uint64_t payload_bytes = 0;   // of this frame
  uint64_t checksum = 0;        // 0 without has_checksum
  uint64_t sequence = 0;        // of the frame on its link and direction, from 0
};

using EncodedHeader = std::array<uint8_t, kFrameHeaderBytes>;

/// metadata_bytes + num_rows · row_width · element bytes. The header's shape must be valid.
uint64_t MessageBytes(const FrameHeader& header);

/// Payload bytes of every part but the last: ⌈message_bytes / parts⌉, padded to the alignment.
uint64_t PartBytes(uint64_t message_bytes, uint32_t parts);

/// The fewest parts of at most `max_payload_bytes` (a multiple of the alignment, > 0); at least 1.
uint32_t NumParts(uint64_t message_bytes, uint64_t max_payload_bytes);

/// OK when every field is inside `limits` and the counts agree with one another; else
/// INVALID_ARGUMENT with the field, its value and the bound. Allocates nothing on success.
absl::Status ValidateFrameHeader(const FrameHeader& header, const FrameLimits& limits);

EncodedHeader EncodeFrameHeader(const FrameHeader& header);

/// `bytes` must be kFrameHeaderBytes long. What is returned has passed ValidateFrameHeader; the
/// checksum has not been compared.
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes,
                                              const FrameLimits& limits);

/// XXH3-64 of the payload's bytes.
uint64_t HashPayload(const Payload& payload);

/// The checksum of a frame: XXH3-64 of its encoded header in which the checksum field holds the
/// payload's hash. (Two steps, so that the payload is hashed before the sequence is known.)
uint64_t FrameChecksum(const FrameHeader& header, uint64_t payload_hash);

/// DATA_LOSS when the frame carries a checksum and it differs from the payload's;
/// INVALID_ARGUMENT when the payload's size is not the header's.
absl::Status VerifyPayload(const FrameHeader& header, const Payload& payload);

}  // namespace moebius
