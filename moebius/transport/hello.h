// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/transport/frame/message.h"
#include "moebius/transport/lane.h"

namespace moebius {

/// The first frame of a link in each direction: who speaks, which lane of which connection this is,
/// and what the speaker can take. The incarnation is in the frame's header.
struct Hello {
  Lane lane = Lane::kControl;
  uint64_t connection_id = 0;      // chosen by the dialer; the same on all three lanes
  uint64_t window_bytes = 0;       // what the speaker's peer may have under way on this lane
  uint64_t max_message_bytes = 0;  // what the speaker accepts
  uint32_t max_payload_bytes = 0;  // of one frame; a multiple of kMessageAlignment
  std::string name;                // at most kMaxNameBytes of printable ASCII
  std::string greeting;            // at most kMaxGreetingBytes, opaque
};

inline constexpr size_t kMaxNameBytes = 64;
inline constexpr size_t kMaxGreetingBytes = 2048;

/// The cost of a frame in a window: small frames are not free.
inline uint64_t WindowCost(uint64_t payload_bytes) { return payload_bytes + kFrameHeaderBytes; }

Frame BuildHello(const Hello& hello);
/// INVALID_ARGUMENT with the field for a frame that is no hello or says something impossible: an
/// unknown lane, a window that holds less than two frames, lengths beyond the payload.
absl::StatusOr<Hello> ParseHello(const FrameHeader& header, const Payload& payload);

/// A frame of the transport without payload beyond the header: a beat.
Frame BuildBeat();

/// `consumed`: every frame of the lane with a smaller sequence has been consumed.
Frame BuildCredit(uint64_t consumed);
absl::StatusOr<uint64_t> ParseCredit(const FrameHeader& header, const Payload& payload);

/// The last frame of a link: why it ends. Messages are cut to 512 bytes.
Frame BuildGoodbye(const absl::Status& reason);
/// Never OK: a goodbye without a usable reason is UNAVAILABLE.
absl::Status ParseGoodbye(const FrameHeader& header, const Payload& payload);

}  // namespace moebius
