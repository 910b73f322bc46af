// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moebius {

/// What a process accepts in a frame's header. Every number of a header is compared with these
/// before it is used for anything. All bounds are inclusive.
struct FrameLimits {
  uint64_t max_payload_bytes = 0;  // of one frame; a multiple of kMessageAlignment
  uint64_t max_message_bytes = 0;  // of all parts of a message
  uint64_t max_metadata_bytes = 0;
  uint64_t max_num_rows = 0;
  uint32_t max_row_width = 0;  // elements
  uint32_t max_layer = 0;
  uint32_t max_round = 0;
  uint32_t max_micro_batch = 0;
  /// A frame without a checksum is refused: always between hosts, optional inside one.
  bool require_checksum = true;
};

/// What the configuration says about the largest message: plain numbers, so that the transport
/// needs to know no model.
struct FrameLimitsConfig {
  int64_t max_rows = 0;                // rows of one step
  int64_t max_row_width = 0;           // elements of the widest row
  int64_t max_element_bytes = 4;       // of the widest dtype that travels
  int64_t max_metadata_row_bytes = 0;  // metadata per row, e.g. top_k · 8 + 8
  int64_t num_layers = 1;
  int64_t num_rounds = 1;
  int64_t num_micro_batches = 1;
  int64_t frame_payload_bytes = int64_t{1} << 20;  // frames of the bulk lane are <= 1 MiB
  bool require_checksum = true;
};

/// No configuration may ask for larger messages: the cap of every service's RPCs as well.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{256} << 20;

/// The limits that the configuration needs and no more. INVALID_ARGUMENT names the field that is
/// out of range, or the bytes of the message that would pass kMaxMessageBytes.
absl::StatusOr<FrameLimits> BuildFrameLimits(const FrameLimitsConfig& config);

}  // namespace moebius
