// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"
#include "moebius/transport/hello.h"
#include "moebius/transport/transport_core.h"

namespace moebius {
namespace {

absl::Status ValidateOptions(const TransportOptions& options) {
  const FrameLimits& limits = options.limits;
  const auto refuse = [](const auto&... words) {
    return absl::InvalidArgumentError(absl::StrCat("transport: ", words...));
  };
  if (options.name.empty() || options.name.size() > kMaxNameBytes) {
    return refuse("a name has 1 to ", kMaxNameBytes, " bytes");
  }
  if (options.greeting.size() > kMaxGreetingBytes) {
    return refuse("a greeting of ", options.greeting.size(), " bytes, the limit is ",
                  kMaxGreetingBytes);
  }
  if (limits.max_payload_bytes == 0 || limits.max_payload_bytes % kMessageAlignment != 0 ||
      limits.max_payload_bytes > kMaxMessageBytes) {
    return refuse("frames of ", limits.max_payload_bytes, " bytes");
  }
  // Room for the largest hello, whatever the messages are.
  constexpr uint64_t kHelloBytes = 4096;
  if (limits.max_message_bytes > kMaxMessageBytes || limits.max_message_bytes < kHelloBytes ||
      limits.max_metadata_bytes < kHelloBytes || limits.max_payload_bytes < kHelloBytes) {
    return refuse("messages, metadata and frames hold at least ", kHelloBytes, " bytes");
  }
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    if (options.window_bytes[lane] / 2 < WindowCost(limits.max_payload_bytes)) {
      return refuse("the window of the ", LaneName(static_cast<Lane>(lane)), " lane is ",
                    options.window_bytes[lane], " bytes; it must hold two frames of ",
                    WindowCost(limits.max_payload_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> Transport::Make(const TransportOptions& options,
                                                           LinkProvider& provider, Reactor& reactor,
                                                           PeerWatcher& watcher) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  TransportOptions complete = options;
  while (complete.incarnation == 0) complete.incarnation = SeedFromSystem();
  return std::unique_ptr<Transport>(
      new Transport(std::make_shared<Core>(complete, provider, reactor, watcher)));
}

Transport::~Transport() { core_->Shutdown(); }

void Transport::SetGreeting(std::string greeting) { core_->SetGreeting(std::move(greeting)); }
absl::StatusOr<Address> Transport::Listen(const Address& address) { return core_->Listen(address); }
absl::StatusOr<PeerId> Transport::Connect(const Address& address) {
  return core_->Connect(address);
}
void Transport::Disconnect(PeerId peer, const absl::Status& reason) {
  core_->Disconnect(peer, reason);
}
absl::StatusOr<SendId> Transport::Send(PeerId peer, Lane lane, Message message,
                                       SendOptions options) {
  return core_->Send(peer, lane, std::move(message), std::move(options));
}
bool Transport::CancelSend(PeerId peer, Lane lane, SendId id) {
  return core_->CancelSend(peer, lane, id);
}
absl::StatusOr<ReservationId> Transport::Reserve(ReservationSpec spec) {
  return core_->Reserve(std::move(spec));
}
bool Transport::CancelReservation(ReservationId id) { return core_->CancelReservation(id); }
std::vector<PeerInfo> Transport::peers() const { return core_->peers(); }
absl::StatusOr<PeerInfo> Transport::FindPeer(PeerId id) const { return core_->FindPeer(id); }
TransportFigures Transport::figures() const { return core_->figures(); }
const Histogram& Transport::round_trips(Lane lane) const { return core_->round_trips(lane); }
uint64_t Transport::incarnation() const { return core_->incarnation(); }
DeliveryPoller* Transport::poller() const { return core_->poller(); }

// --- Sending, reserving and figures.

absl::StatusOr<SendId> Transport::Core::Send(PeerId id, Lane lane, Message message,
                                             SendOptions options) {
  End end;
  SendId send;
  {
    MutexLock lock(mutex_);
    const Peer* peer = Find(id);
    if (peer == nullptr) {
      return absl::UnavailableError(absl::StrCat("there is no peer ", id.value()));
    }
    if (!std::any_of(peer->greeted.begin(), peer->greeted.end(), [](bool is) { return is; })) {
      return absl::UnavailableError(absl::StrCat(
          "peer ", peer->info.address, " is not connected: ", peer->info.reason.message()));
    }
    if (options.incarnation != 0 && options.incarnation != peer->info.incarnation) {
      return absl::UnavailableError(
          absl::StrCat("peer ", peer->info.address, " is another process than it was"));
    }
    end = peer->ends[LaneIndex(lane)];
    send = SendId(next_send_++);
  }
  if (end == nullptr) return absl::UnavailableError("the connection is not there");
  const absl::Duration deadline = options.timeout == absl::InfiniteDuration()
                                      ? absl::InfiniteDuration()
                                      : clock_.Now() + options.timeout;
  MOEBIUS_RETURN_IF_ERROR(end->Send(send, std::move(message), deadline, std::move(options.done)));
  if (deadline == absl::InfiniteDuration() || end->queued_bytes() == 0) return send;
  MutexLock lock(mutex_);
  const auto armed = armed_sends_.find(end.get());
  if (armed == armed_sends_.end() || deadline < armed->second) {
    armed_sends_[end.get()] = deadline;
    ReactAt(deadline, [this, weak = std::weak_ptr<LinkEnd>(end)] { ExpireSends(weak); });
  }
  return send;
}

void Transport::Core::ExpireSends(const std::weak_ptr<LinkEnd>& weak) {
  const End end = weak.lock();
  if (end == nullptr) return;
  const absl::Duration next = end->ExpireSends(clock_.Now());
  MutexLock lock(mutex_);
  armed_sends_.erase(end.get());
  if (next == absl::InfiniteDuration()) return;
  armed_sends_[end.get()] = next;
  ReactAt(next, [this, weak] { ExpireSends(weak); });
}

bool Transport::Core::CancelSend(PeerId id, Lane lane, SendId send) {
  End end;
  {
    MutexLock lock(mutex_);
    const Peer* peer = Find(id);
    if (peer != nullptr) end = peer->ends[LaneIndex(lane)];
  }
  return end != nullptr && end->CancelSend(send);
}

void Transport::Core::OnFinished(std::vector<SendQueue::Finished> finished) {
  React([finished = std::move(finished)] {
    for (const SendQueue::Finished& send : finished) {
      if (send.done != nullptr) send.done(send.status);
    }
  });
}

absl::StatusOr<ReservationId> Transport::Core::Reserve(ReservationSpec spec) {
  if (spec.max_message_bytes > options_.limits.max_message_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a reservation of ", spec.max_message_bytes,
                                                     " bytes, the message limit is ",
                                                     options_.limits.max_message_bytes));
  }
  const bool needs_peer = spec.scope != ReservationScope::kKind;
  const PeerId source = spec.source;
  absl::StatusOr<ReservationId> id = ReservationId();
  {
    // Under the lock, so that no death comes between the look and the entry.
    MutexLock lock(mutex_);
    const Peer* peer = Find(source);
    if (needs_peer && (peer == nullptr || peer->info.state == PeerState::kDead)) {
      return absl::UnavailableError(absl::StrCat("peer ", source.value(), " is not there"));
    }
    id = table_.Add(std::move(spec));
  }
  MOEBIUS_RETURN_IF_ERROR(id.status());
  ArmReservations();
  return id;
}

void Transport::Core::ArmReservations() {
  const absl::Duration next = table_.next_deadline();
  MutexLock lock(mutex_);
  if (next >= armed_reservations_) return;
  armed_reservations_ = next;
  ReactAt(next, [this] { ExpireReservations(); });
}

void Transport::Core::ExpireReservations() {
  {
    MutexLock lock(mutex_);
    // A timer that a shorter deadline overtook; that one armed its own.
    if (armed_reservations_ <= clock_.Now()) armed_reservations_ = absl::InfiniteDuration();
  }
  table_.Expire(clock_.Now());
  ArmReservations();
}

std::vector<PeerInfo> Transport::Core::peers() const {
  MutexLock lock(mutex_);
  std::vector<PeerInfo> infos;
  for (const auto& [id, peer] : peers_) infos.push_back(peer.info);
  return infos;
}

absl::StatusOr<PeerInfo> Transport::Core::FindPeer(PeerId id) const {
  MutexLock lock(mutex_);
  const auto found = peers_.find(id);
  if (found == peers_.end()) return absl::NotFoundError(absl::StrCat("no peer ", id.value()));
  return found->second.info;
}

TransportFigures Transport::Core::figures() const {
  TransportFigures figures;
  for (size_t lane = 0; lane < kNumLanes; ++lane) figures.lanes[lane] = counters_[lane].figures();
  figures.reserved_bytes = table_.reserved_bytes();
  figures.num_reservations = table_.num_reservations();
  figures.buffers = buffers_.figures();
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : peers_) {
    if (peer.info.state != PeerState::kDead) ++figures.num_peers;
    for (const End& end : peer.ends) {
      if (end == nullptr) continue;
      ++figures.num_links;
      figures.queued_bytes += end->queued_bytes();
      figures.in_flight_bytes += end->in_flight_bytes();
      figures.assembling_bytes += end->assembling_bytes();
    }
  }
  figures.num_links += silent_.size() + leaving_.size() + retired_.size();
  figures.protocol_errors = protocol_errors_;
  figures.silent_links_cut = silent_links_cut_;
  figures.peers_died = peers_died_;
  figures.redials = redials_;
  return figures;
}

}  // namespace moebius
