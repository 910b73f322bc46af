// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/counters.h"

namespace moebius {

absl::string_view DropReasonName(DropReason reason) {
  constexpr absl::string_view kNames[kNumDropReasons] = {"unreserved", "duplicate", "abandoned",
                                                         "ended"};
  return kNames[static_cast<size_t>(reason)];
}

absl::string_view TransportStageName(TransportStage stage) {
  return stage == TransportStage::kQueued ? "queued" : "delivered";
}

void TrafficFigures::Add(const TrafficFigures& other) {
  messages += other.messages;
  frames += other.frames;
  payload_bytes += other.payload_bytes;
  own_frames += other.own_frames;
  own_payload_bytes += other.own_payload_bytes;
}

void LaneFigures::Add(const LaneFigures& other) {
  sent.Add(other.sent);
  received.Add(other.received);
  copied_bytes += other.copied_bytes;
  for (size_t i = 0; i < kNumDropReasons; ++i) dropped_messages[i] += other.dropped_messages[i];
  for (size_t i = 0; i < kNumTransportStages; ++i) stage_times[i] += other.stage_times[i];
}

void LaneCounters::Traffic::OnFrame(FrameKind kind, uint64_t bytes) {
  Increase(IsMessageKind(kind) ? frames : own_frames, 1);
  Increase(IsMessageKind(kind) ? payload_bytes : own_payload_bytes, bytes);
}

TrafficFigures LaneCounters::Traffic::figures() const {
  return {messages.load(), frames.load(), payload_bytes.load(), own_frames.load(),
          own_payload_bytes.load()};
}

void LaneCounters::OnSent(FrameKind kind, uint64_t payload_bytes, bool ends_message) {
  sent_.OnFrame(kind, payload_bytes);
  if (ends_message) Increase(sent_.messages, 1);
}

void LaneCounters::OnReceived(FrameKind kind, uint64_t payload_bytes) {
  received_.OnFrame(kind, payload_bytes);
}

LaneFigures LaneCounters::figures() const {
  LaneFigures figures;
  figures.sent = sent_.figures();
  figures.received = received_.figures();
  figures.copied_bytes = copied_bytes_.load();
  for (size_t i = 0; i < kNumDropReasons; ++i) figures.dropped_messages[i] = dropped_[i].load();
  for (size_t i = 0; i < kNumTransportStages; ++i) {
    figures.stage_times[i] = absl::Nanoseconds(static_cast<int64_t>(stage_nanoseconds_[i].load()));
  }
  return figures;
}

}  // namespace moebius
