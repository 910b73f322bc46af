// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moebius/base/mutex.h"
#include "moebius/transport/frame/buffer_pool.h"
#include "moebius/transport/link_end.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// What is behind Transport: the peers' lives. Everything that changes a peer happens in reactions,
/// one at a time; `mutex_` guards what callers and figures read besides.
///
/// A peer's life: connecting (its links say hello) ▸ connected ⇄ suspect ▸ dead ▸ forgotten, or
/// connecting again when this process dials it.
class Transport::Core final : public LinkEndOwner,
                              public LinkAcceptor,
                              public std::enable_shared_from_this<Transport::Core> {
 public:
  Core(const TransportOptions& options, LinkProvider& provider, Reactor& reactor,
       PeerWatcher& watcher);

  absl::StatusOr<Address> Listen(const Address& address);
  void SetGreeting(std::string greeting) MOEBIUS_EXCLUDES(greeting_mutex_);
  absl::StatusOr<PeerId> Connect(const Address& address);
  void Disconnect(PeerId peer, const absl::Status& reason);
  absl::StatusOr<SendId> Send(PeerId peer, Lane lane, Message message, SendOptions options);
  bool CancelSend(PeerId peer, Lane lane, SendId id);
  absl::StatusOr<ReservationId> Reserve(ReservationSpec spec);
  bool CancelReservation(ReservationId id) { return table_.Cancel(id); }
  std::vector<PeerInfo> peers() const;
  absl::StatusOr<PeerInfo> FindPeer(PeerId id) const;
  const Histogram& round_trips(Lane lane) const { return counters_[LaneIndex(lane)].round_trips(); }
  TransportFigures figures() const;
  uint64_t incarnation() const { return options_.incarnation; }
  DeliveryPoller* poller() const { return provider_.poller(); }
  /// Ends everything; no reaction runs afterwards.
  void Shutdown();

  void OnLink(std::unique_ptr<Link> link) override;
  void OnHello(LinkEnd& end, const Hello& hello, uint64_t incarnation) override;
  void OnBadHello(LinkEnd& end, const absl::Status& reason) override;
  void OnEnded(LinkEnd& end, const absl::Status& reason) override;
  void OnFinished(std::vector<SendQueue::Finished> finished) override;

 private:
  using End = std::shared_ptr<LinkEnd>;

  struct Peer {
    PeerInfo info;
    Address target;              // where to dial it
    uint64_t connection_id = 0;  // of its present life
    std::array<End, kNumLanes> ends;
    std::array<bool, kNumLanes> greeted = {};  // both hellos are through
    std::optional<FailureDetector> detector;   // once connected
    absl::Duration next_beat;
    absl::Duration reconnect_delay;
    uint64_t life = 0;  // timers of an earlier life do nothing
    bool forget = false;
  };

  void React(std::function<void()> reaction);
  void ReactAt(absl::Duration time, std::function<void()> reaction);
  Reactor::Reaction Guarded(std::function<void()> reaction);

  End MakeEnd(std::unique_ptr<Link> link, bool dialed, Lane lane);
  Hello OwnHello(Lane lane, uint64_t connection_id) const;
  Peer* Find(PeerId id) MOEBIUS_REQUIRES(mutex_);
  void Dial(PeerId id);
  void Greet(const End& end, const Hello& hello, uint64_t incarnation);
  absl::Status AttachAccepted(const End& end, const Hello& hello, uint64_t incarnation);
  absl::Status AttachDialed(const End& end, const Hello& hello, uint64_t incarnation);
  absl::StatusOr<PeerId> FindOrAdd(const End& end, const Hello& hello, uint64_t incarnation);
  void FinishAttach(PeerId id);
  void Tick(PeerId id, uint64_t life);
  void AgeBuffers() MOEBIUS_EXCLUDES(mutex_);
  void EndOf(const End& end, const absl::Status& reason);
  void Kill(PeerId id, const absl::Status& reason);
  void Refuse(const End& end, const absl::Status& reason);
  void RemoveSilent(const End& end) MOEBIUS_EXCLUDES(mutex_);
  void ExpireSends(const std::weak_ptr<LinkEnd>& end);
  void ExpireReservations();
  void ArmReservations() MOEBIUS_EXCLUDES(mutex_);
  void Retire(End end);
  void SweepRetired();

  const TransportOptions options_;
  LinkProvider& provider_;
  Reactor& reactor_;
  PeerWatcher& watcher_;
  const Clock& clock_;
  ReservationTable table_;
  BufferPool buffers_;  // of messages that are put together
  std::array<LaneCounters, kNumLanes> counters_;

  // Held by every reaction; Shutdown takes it for good.
  Mutex reaction_mutex_;
  bool closed_ MOEBIUS_GUARDED_BY(reaction_mutex_) = false;

  mutable Mutex greeting_mutex_;  // taken last
  std::string greeting_ MOEBIUS_GUARDED_BY(greeting_mutex_);

  mutable Mutex mutex_;
  std::map<PeerId, Peer> peers_ MOEBIUS_GUARDED_BY(mutex_);
  std::list<End> silent_ MOEBIUS_GUARDED_BY(mutex_);  // accepted, no hello yet; oldest first
  // Refused, saying goodbye; at most max_silent_links.
  std::vector<End> leaving_ MOEBIUS_GUARDED_BY(mutex_);
  std::set<End> retired_ MOEBIUS_GUARDED_BY(mutex_);  // destroyed when nobody else holds them
  std::map<LinkEnd*, absl::Duration> armed_sends_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Duration armed_reservations_ MOEBIUS_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool is_ageing_ MOEBIUS_GUARDED_BY(mutex_) = false;  // a timer of AgeBuffers runs
  uint32_t next_peer_ MOEBIUS_GUARDED_BY(mutex_) = 1;
  uint64_t next_send_ MOEBIUS_GUARDED_BY(mutex_) = 1;
  uint64_t protocol_errors_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t silent_links_cut_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t peers_died_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t redials_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<LinkListener>> listeners_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
