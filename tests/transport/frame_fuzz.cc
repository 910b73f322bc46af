// SPDX-License-Identifier: Apache-2.0
// A frame from anywhere: its first bytes are the header, the rest the payload.
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/transport/frame/frame_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moebius;  // NOLINT: a fuzz target is one function
  FrameLimits limits;
  limits.max_payload_bytes = 1 << 16;
  limits.max_message_bytes = 1 << 18;
  limits.max_metadata_bytes = 1 << 16;
  limits.max_num_rows = 4096;
  limits.max_row_width = 4096;
  limits.max_layer = 60;
  limits.max_round = 15;
  limits.max_micro_batch = 1;
  limits.require_checksum = size % 2 == 0;
  const size_t header_bytes = size < kFrameHeaderBytes ? size : kFrameHeaderBytes;
  const auto header = DecodeFrameHeader(absl::MakeConstSpan(data, header_bytes), limits);
  if (!header.ok()) {
    MOEBIUS_CHECK(absl::IsInvalidArgument(header.status()));
    return 0;
  }
  // What was accepted is inside its limits and encodes to the bytes that it came from.
  MOEBIUS_CHECK_LE(MessageBytes(*header), limits.max_message_bytes);
  MOEBIUS_CHECK_LE(header->payload_bytes, limits.max_payload_bytes);
  const EncodedHeader encoded = EncodeFrameHeader(*header);
  MOEBIUS_CHECK(absl::MakeConstSpan(encoded) == absl::MakeConstSpan(data, kFrameHeaderBytes));
  const Payload payload = {
      SharedBytes::Borrow(absl::MakeConstSpan(data + header_bytes, size - header_bytes))};
  static_cast<void>(VerifyPayload(*header, payload));
  return 0;
}
