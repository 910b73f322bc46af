// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/base/strong_id.h"
#include "moebius/transport/address.h"
#include "moebius/transport/counters.h"
#include "moebius/transport/frame/buffer_pool.h"
#include "moebius/transport/frame/frame_limits.h"
#include "moebius/transport/frame/message.h"
#include "moebius/transport/lane.h"
#include "moebius/transport/link.h"
#include "moebius/transport/peer_info.h"
#include "moebius/transport/reactor.h"
#include "moebius/transport/reservation_table.h"
#include "moebius/transport/send_queue.h"

// The seam for those who send: processes that exchange messages, whatever carries them.

namespace moebius {

struct TransportOptions {
  std::string name;          // shown to peers and in messages, e.g. "expert-2"
  uint64_t incarnation = 0;  // 0: drawn from the system, as every process should
  std::string greeting;      // opaque, <= 2 KiB; each side's watcher judges the other's
  FrameLimits limits;
  FailureDetectorOptions failure;
  ReservationLimits reservations;
  /// What a peer may have under way to this process on each lane; at least two frames.
  std::array<uint64_t, kNumLanes> window_bytes = {1 << 20, 4 << 20, 8 << 20};
  /// What waits in this process for each peer and lane.
  uint64_t max_queued_bytes = uint64_t{64} << 20;
  /// Memory of messages that were put together and are used up, kept for the next ones: two of the
  /// larger messages of a prompt. What is not used for 10 to 20 s is given back.
  uint64_t max_idle_buffer_bytes = uint64_t{128} << 20;
  uint32_t max_peers = 1024;
  /// Links that have not said hello; when one more comes the oldest is cut.
  uint32_t max_silent_links = 256;
  absl::Duration handshake_timeout = absl::Seconds(2);
  absl::Duration min_reconnect_delay = absl::Milliseconds(50);
  absl::Duration max_reconnect_delay = absl::Seconds(1);
  bool checksums_inside_host = false;
};

/// Told what becomes of peers. Calls come one at a time, from the reactor; they never block.
class PeerWatcher {
 public:
  virtual ~PeerWatcher() = default;
  /// Judges the hello of a peer, on both sides. What is not OK is sent to it and ends the
  /// connection.
  virtual absl::Status AdmitPeer(const PeerInfo& peer) { return absl::OkStatus(); }
  /// A link from elsewhere whose first frame was no hello that this process understands, a hello of
  /// another wire version among others. It is told `reason` and ended. As often as anybody likes.
  virtual void OnLinkRefused(const LinkFacts& facts, const absl::Status& reason) {}
  /// Each change of state. After kDead nothing of that life is delivered any more. A peer that was
  /// not dialed is forgotten after kDead; a dialed one is tried again, under the same PeerId.
  virtual void OnPeerState(const PeerInfo& peer) = 0;
};

struct SendOptions {
  /// Only to this life of the peer, as a message of it had it; 0: to whichever is there.
  uint64_t incarnation = 0;
  /// How long the message may wait in this process until its last part has left.
  absl::Duration timeout = absl::InfiniteDuration();
  /// From the reactor, once; may be null: the answer, or the peer's death, is what counts.
  SendDone done;
};

/// Sums over all peers since the start, and what is held now.
struct TransportFigures {
  std::array<LaneFigures, kNumLanes> lanes;
  uint64_t num_peers = 0;         // connecting, connected or suspect
  uint64_t num_links = 0;         // open links, silent ones included
  uint64_t queued_bytes = 0;      // waiting here to be sent
  uint64_t in_flight_bytes = 0;   // sent and not consumed yet, as far as known
  uint64_t assembling_bytes = 0;  // held for unfinished messages
  uint64_t reserved_bytes = 0;
  uint64_t num_reservations = 0;
  BufferPoolFigures buffers;     // of messages that are put together
  uint64_t protocol_errors = 0;  // links cut because of what came over them
  uint64_t silent_links_cut = 0;
  uint64_t peers_died = 0;
  uint64_t redials = 0;  // of peers that had gone or did not answer
};

/// Messages between this process and its peers, in lanes. Knows peers and frames, never what the
/// messages mean.
///
/// Guarantees:
/// 1. Messages of one peer and lane are delivered in the order in which they were sent; across
///    lanes and peers there is no order.
/// 2. A message is delivered whole, unchanged, at most once, and only to a reservation. One that
///    nobody reserved is consumed, dropped and counted.
/// 3. Nothing of a former life of a peer is delivered: not after its kDead, not to a reservation
///    made for the new life.
/// 4. Nothing is delivered before the watcher has heard kConnected of its sender: what comes
///    earlier, as one end is always first to know, waits in the lane's window.
/// 5. Memory is bounded: per peer and lane by max_queued_bytes here, by the window at the other
///    end, and by reservations. A full queue is RESOURCE_EXHAUSTED at once.
/// 6. A peer is dead at once when one of its links ends, or when a frame was lost or damaged; after
///    `dead_after` of silence; and when it takes nothing of a lane for `stalled_after`. Then its
///    reservations fail with UNAVAILABLE and the reason.
///
/// Thread-safe, also from inside its callbacks; never destroyed from inside one. Destruction says
/// goodbye to all peers and ends all links; reservations end without a call.
class Transport {
 public:
  /// `provider`, `reactor` and `watcher` outlive the transport. INVALID_ARGUMENT when windows,
  /// limits or names are not usable together.
  static absl::StatusOr<std::unique_ptr<Transport>> Make(const TransportOptions& options,
                                                         LinkProvider& provider, Reactor& reactor,
                                                         PeerWatcher& watcher);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Accepts peers at `address` until destruction; returns where, with the chosen port.
  absl::StatusOr<Address> Listen(const Address& address);

  /// What hellos say from now on, at most 2 KiB; e.g. once the address that was chosen is known.
  void SetGreeting(std::string greeting);

  /// Connects to `address`, and again after each failure or death, until Disconnect. Returns at
  /// once; the watcher hears how it goes. RESOURCE_EXHAUSTED at max_peers.
  absl::StatusOr<PeerId> Connect(const Address& address);
  /// Says goodbye with `reason` (not OK) and forgets the peer; the watcher hears kDead.
  void Disconnect(PeerId peer, const absl::Status& reason);

  /// Queues the message. UNAVAILABLE when the peer is not there, RESOURCE_EXHAUSTED when the lane's
  /// queue is full, INVALID_ARGUMENT or RESOURCE_EXHAUSTED when the message breaks the peer's or
  /// own limits. `options.done` is called only when this returned OK.
  absl::StatusOr<SendId> Send(PeerId peer, Lane lane, Message message, SendOptions options = {});
  /// The message, or what is left of it, will not leave; its done is not called. False when it has
  /// left, failed or was cancelled before.
  bool CancelSend(PeerId peer, Lane lane, SendId id);

  /// Makes room for messages; see ReservationTable. UNAVAILABLE when spec.source is unknown or
  /// dead.
  absl::StatusOr<ReservationId> Reserve(ReservationSpec spec);
  bool CancelReservation(ReservationId id);

  std::vector<PeerInfo> peers() const;
  /// NOT_FOUND when it is not known (any more).
  absl::StatusOr<PeerInfo> FindPeer(PeerId id) const;
  TransportFigures figures() const;
  /// Of beats and the credits that answer them, of all peers. As long-lived as the transport.
  const Histogram& round_trips(Lane lane) const;
  uint64_t incarnation() const;
  /// The provider's, for those who wait for deliveries; may be null.
  DeliveryPoller* poller() const;

 private:
  class Core;
  explicit Transport(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  std::shared_ptr<Core> core_;
};

}  // namespace moebius
