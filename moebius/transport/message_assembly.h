// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "moebius/base/strong_id.h"
#include "moebius/transport/counters.h"
#include "moebius/transport/frame/buffer_pool.h"
#include "moebius/transport/frame/message.h"
#include "moebius/transport/lane.h"
#include "moebius/transport/reservation_table.h"

namespace moebius {

/// Puts the parts of one lane's messages together, for messages that a reservation expects. Holds
/// at most one unfinished message, as parts of messages are never interleaved on a lane.
///
/// Nothing is taken from the pool before a reservation has matched; then one buffer for the
/// message's bytes, and only where it has several parts or its rows are not aligned. Not
/// thread-safe.
class MessageAssembly {
 public:
  MessageAssembly(ReservationTable& table, BufferPool& buffers, PeerId source, Lane lane,
                  LaneCounters& counters)
      : table_(table), buffers_(buffers), source_(source), lane_(lane), counters_(counters) {}

  /// Takes the next frame of the lane; header and payload have been checked. Delivers the message
  /// that it completes. Drops are counted.
  void Add(const FrameHeader& header, Payload payload);

  /// Bytes held for an unfinished message.
  uint64_t held_bytes() const { return builder_.has_value() ? builder_->size() : 0; }

 private:
  void Begin(const FrameHeader& header);
  void Abandon();
  Message TakeSinglePart(const FrameHeader& header, Payload payload);

  ReservationTable& table_;
  BufferPool& buffers_;
  const PeerId source_;
  const Lane lane_;
  LaneCounters& counters_;
  // The message whose parts are arriving; no claim_ while an unexpected one passes by.
  std::optional<ReservationTable::Claim> claim_;
  std::optional<FrameHeader> current_;  // header of its latest part
  std::optional<BytesBuilder> builder_;
};

}  // namespace moebius
