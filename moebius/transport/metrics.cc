// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/metrics.h"

#include <array>

namespace moebius {
namespace {

// In the order of PeerState.
constexpr size_t kNumPeerStates = 4;

void WriteCount(Metric metric, uint64_t value, LabelValues labels, MetricWriter& writer) {
  writer.WriteCounter(metric, static_cast<double>(value), labels);
}

void WriteTraffic(const TrafficFigures& traffic, LabelValues labels, MetricWriter& writer) {
  WriteCount(Metric::kTransportBytes, traffic.wire_bytes(), labels, writer);
  WriteCount(Metric::kTransportFrames, traffic.frames + traffic.own_frames, labels, writer);
  WriteCount(Metric::kTransportMessages, traffic.messages, labels, writer);
}

void WriteLane(Lane lane, const LaneFigures& figures, absl::string_view provider,
               MetricWriter& writer) {
  const absl::string_view name = LaneName(lane);
  WriteTraffic(figures.sent, {provider, name, "sent"}, writer);
  WriteTraffic(figures.received, {provider, name, "received"}, writer);
  WriteCount(Metric::kTransportCopiedBytes, figures.copied_bytes, {provider, name}, writer);
  for (size_t index = 0; index < kNumTransportStages; ++index) {
    writer.WriteCounter(Metric::kTransportStageSeconds,
                        absl::ToDoubleSeconds(figures.stage_times[index]),
                        {provider, name, TransportStageName(static_cast<TransportStage>(index))});
  }
  for (size_t index = 0; index < kNumDropReasons; ++index) {
    WriteCount(Metric::kTransportDroppedMessages, figures.dropped_messages[index],
               {provider, name, DropReasonName(static_cast<DropReason>(index))}, writer);
  }
}

void WritePeers(const Transport& transport, absl::string_view provider, MetricWriter& writer) {
  std::array<int, kNumPeerStates> counts = {};
  int num_unauthenticated = 0;
  for (const PeerInfo& peer : transport.peers()) {
    ++counts[static_cast<size_t>(peer.state)];
    if (IsUnauthenticated(peer)) ++num_unauthenticated;
  }
  writer.WriteGauge(Metric::kUnauthenticatedPeers, num_unauthenticated, {provider});
  for (size_t index = 0; index < kNumPeerStates; ++index) {
    writer.WriteGauge(Metric::kTransportPeers, counts[index],
                      {provider, PeerStateName(static_cast<PeerState>(index))});
  }
}

}  // namespace

bool IsUnauthenticated(const PeerInfo& peer) {
  const bool is_there = peer.state == PeerState::kConnected || peer.state == PeerState::kSuspect;
  if (!is_there || !peer.facts.identity.empty() || peer.facts.same_host) return false;
  const absl::StatusOr<Address> remote = ParseAddress(peer.facts.remote);
  return !remote.ok() || !IsLoopback(*remote);
}

void WriteTransportMetrics(const Transport& transport, absl::string_view provider,
                           MetricWriter& writer) {
  const TransportFigures figures = transport.figures();
  for (const Lane lane : {Lane::kControl, Lane::kDecode, Lane::kBulk}) {
    WriteLane(lane, figures.lanes[LaneIndex(lane)], provider, writer);
    writer.WriteHistogram(transport.round_trips(lane), {provider, LaneName(lane)});
  }
  WritePeers(transport, provider, writer);
  const auto write_error = [&](absl::string_view reason, uint64_t count) {
    WriteCount(Metric::kTransportErrors, count, {provider, reason}, writer);
  };
  write_error("protocol", figures.protocol_errors);
  write_error("silent_link", figures.silent_links_cut);
  write_error("peer_died", figures.peers_died);
  WriteCount(Metric::kTransportRetries, figures.redials, {provider}, writer);
  const auto write_held = [&](absl::string_view what, uint64_t bytes) {
    writer.WriteGauge(Metric::kTransportHeldBytes, static_cast<double>(bytes), {provider, what});
  };
  write_held("queued", figures.queued_bytes);
  write_held("in_flight", figures.in_flight_bytes);
  write_held("assembling", figures.assembling_bytes);
  write_held("reserved", figures.reserved_bytes);
  write_held("idle", figures.buffers.idle_bytes);
  writer.WriteGauge(Metric::kTransportLinks, static_cast<double>(figures.num_links), {provider});
  writer.WriteGauge(Metric::kTransportReservations, static_cast<double>(figures.num_reservations),
                    {provider});
}

}  // namespace moebius
