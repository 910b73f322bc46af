// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/telemetry/instruments.h"
#include "moebius/transport/frame/frame_header.h"
#include "moebius/transport/lane.h"

namespace moebius {

/// Why something that arrived was not delivered. Each is a number, none an error of the receiver.
enum class DropReason {
  kUnreserved,  // no reservation expects the message, or it is larger than expected
  kDuplicate,   // a sequence that was there before
  kAbandoned,   // the sender began another message before this one was whole
  kEnded,       // the reservation ended while the message was arriving
};
inline constexpr size_t kNumDropReasons = 4;
absl::string_view DropReasonName(DropReason reason);

/// Where messages spend time inside a transport, at either end; what lies between is the link's.
enum class TransportStage {
  kQueued,     // from Send until the last part is given to the link: credit, and others before it
  kDelivered,  // from each frame's arrival until it is copied and, the last, handed over
};
inline constexpr size_t kNumTransportStages = 2;
absl::string_view TransportStageName(TransportStage stage);

/// What crossed one lane in one direction. Frames and bytes are those of messages; the transport's
/// own frames (hello, beat, credit, goodbye) are counted apart, so that formulas hold exactly.
struct TrafficFigures {
  uint64_t messages = 0;
  uint64_t frames = 0;
  uint64_t payload_bytes = 0;
  uint64_t own_frames = 0;
  uint64_t own_payload_bytes = 0;

  /// Every byte that was given to the links: payloads and headers.
  uint64_t wire_bytes() const {
    return payload_bytes + own_payload_bytes + kFrameHeaderBytes * (frames + own_frames);
  }
  void Add(const TrafficFigures& other);
};

struct LaneFigures {
  TrafficFigures sent;
  TrafficFigures received;
  uint64_t copied_bytes = 0;  // copied while messages were put together
  std::array<uint64_t, kNumDropReasons> dropped_messages = {};
  std::array<absl::Duration, kNumTransportStages> stage_times = {};  // summed over messages

  void Add(const LaneFigures& other);
};

/// The same, counted by several threads.
class LaneCounters {
 public:
  void OnSent(FrameKind kind, uint64_t payload_bytes, bool ends_message);
  void OnReceived(FrameKind kind, uint64_t payload_bytes);
  void OnDelivered() { Increase(received_.messages, 1); }
  void OnCopied(uint64_t bytes) { Increase(copied_bytes_, bytes); }
  void OnDropped(DropReason reason) { Increase(dropped_[static_cast<size_t>(reason)], 1); }
  void OnStage(TransportStage stage, absl::Duration time) {
    Increase(stage_nanoseconds_[static_cast<size_t>(stage)],
             static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(time))));
  }
  void OnRoundTrip(absl::Duration time) { round_trips_.Observe(time); }
  LaneFigures figures() const;
  const Histogram& round_trips() const { return round_trips_; }

 private:
  using Counter = std::atomic<uint64_t>;
  struct Traffic {
    Counter messages{0}, frames{0}, payload_bytes{0}, own_frames{0}, own_payload_bytes{0};
    void OnFrame(FrameKind kind, uint64_t bytes);
    TrafficFigures figures() const;
  };
  static void Increase(Counter& counter, uint64_t by) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }

  Traffic sent_;
  Traffic received_;
  Counter copied_bytes_{0};
  std::array<Counter, kNumDropReasons> dropped_ = {};
  std::array<Counter, kNumTransportStages> stage_nanoseconds_ = {};
  Histogram round_trips_{Metric::kPeerRttSeconds};
};

}  // namespace moebius
