// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/transport_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// How long a link that said goodbye may take to deliver it.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
// A link that another thread is still inside of is looked at again after this.
constexpr absl::Duration kSweepDelay = absl::Milliseconds(1);

// What arrived was wrong, as opposed to a link that ended by itself.
bool IsProtocolError(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsDataLoss(status) ||
         absl::IsResourceExhausted(status);
}

absl::Status Dead(const PeerInfo& peer, const absl::Status& reason) {
  return absl::UnavailableError(absl::StrCat("peer ", peer.name.empty() ? peer.address : peer.name,
                                             " is dead: ", reason.message()));
}

}  // namespace

Transport::Core::Core(const TransportOptions& options, LinkProvider& provider, Reactor& reactor,
                      PeerWatcher& watcher)
    : options_(options),
      provider_(provider),
      reactor_(reactor),
      watcher_(watcher),
      clock_(reactor.clock()),
      table_(options.reservations) {}

Reactor::Reaction Transport::Core::Guarded(std::function<void()> reaction) {
  return [weak = weak_from_this(), reaction = std::move(reaction)] {
    const std::shared_ptr<Core> core = weak.lock();
    if (core == nullptr) return;
    MutexLock lock(core->reaction_mutex_);
    if (!core->closed_) reaction();
  };
}

void Transport::Core::React(std::function<void()> reaction) {
  reactor_.Post(Guarded(std::move(reaction)));
}

void Transport::Core::ReactAt(absl::Duration time, std::function<void()> reaction) {
  reactor_.RunAt(time, Guarded(std::move(reaction)));
}

Transport::Core::End Transport::Core::MakeEnd(std::unique_ptr<Link> link, bool dialed, Lane lane) {
  LinkEndOptions options;
  options.lane = lane;
  options.dialed = dialed;
  options.limits = options_.limits;
  options.incarnation = options_.incarnation;
  options.window_bytes = options_.window_bytes;
  options.max_queued_bytes = options_.max_queued_bytes;
  options.checksums_inside_host = options_.checksums_inside_host;
  return std::make_shared<LinkEnd>(options, std::move(link), clock_, *this, table_, counters_);
}

Hello Transport::Core::OwnHello(Lane lane, uint64_t connection_id) const {
  Hello hello;
  hello.lane = lane;
  hello.connection_id = connection_id;
  hello.window_bytes = options_.window_bytes[LaneIndex(lane)];
  hello.max_message_bytes = options_.limits.max_message_bytes;
  hello.max_payload_bytes = static_cast<uint32_t>(options_.limits.max_payload_bytes);
  hello.name = options_.name;
  hello.greeting = options_.greeting;
  return hello;
}

Transport::Core::Peer* Transport::Core::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : &found->second;
}

// --- Links that come in, and hellos.

void Transport::Core::OnLink(std::unique_ptr<Link> link) {
  End end = MakeEnd(std::move(link), false, Lane::kControl);
  End oldest;
  {
    MutexLock lock(mutex_);
    silent_.push_back(end);
    if (silent_.size() > options_.max_silent_links) {
      oldest = silent_.front();
      silent_.pop_front();
      ++silent_links_cut_;
    }
  }
  if (oldest != nullptr) React([this, oldest] { Retire(oldest); });
  end->Start(PeerId(), Hello());
  ReactAt(clock_.Now() + options_.handshake_timeout,
          [this, weak = std::weak_ptr<LinkEnd>(end)]() mutable {
            End end = weak.lock();
            if (end == nullptr) return;
            {
              MutexLock lock(mutex_);
              const auto found = std::find(silent_.begin(), silent_.end(), end);
              if (found == silent_.end()) return;
              silent_.erase(found);
              ++silent_links_cut_;
            }
            Retire(std::move(end));
          });
}

void Transport::Core::RemoveSilent(const End& end) {
  MutexLock lock(mutex_);
  silent_.remove(end);
}

void Transport::Core::OnHello(LinkEnd& end, const Hello& hello, uint64_t incarnation) {
  React([this, weak = end.weak_from_this(), hello, incarnation] {
    if (const End end = weak.lock(); end != nullptr) Greet(end, hello, incarnation);
  });
}

void Transport::Core::Greet(const End& end, const Hello& hello, uint64_t incarnation) {
  absl::Status status;
  if (incarnation == options_.incarnation) {
    status = absl::InvalidArgumentError("this process would be its own peer");
  } else if (end->dialed()) {
    status = AttachDialed(end, hello, incarnation);
  } else {
    status = AttachAccepted(end, hello, incarnation);
  }
  if (!status.ok()) Refuse(end, status);
}

void Transport::Core::Refuse(const End& end, const absl::Status& reason) {
  RemoveSilent(end);
  PeerId owner;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, peer] : peers_) {
      if (peer.ends[LaneIndex(end->lane())] == end) owner = id;
    }
    if (owner == PeerId()) leaving_.push_back(end);
  }
  end->Leave(reason);
  if (owner != PeerId()) return Kill(owner, reason);
  ReactAt(clock_.Now() + kLeaveTimeout,
          [this, weak = std::weak_ptr<LinkEnd>(end)] { EndOf(weak.lock(), absl::OkStatus()); });
}

absl::StatusOr<PeerId> Transport::Core::FindOrAdd(const End& end, const Hello& hello,
                                                  uint64_t incarnation) {
  PeerInfo info;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, peer] : peers_) {
      if (!peer.info.dialed && peer.info.incarnation == incarnation &&
          peer.connection_id == hello.connection_id && peer.info.state != PeerState::kDead) {
        return id;
      }
    }
    if (peers_.size() >= options_.max_peers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("all ", options_.max_peers, " peers of ", options_.name, " are there"));
    }
    info.id = PeerId(next_peer_++);
  }
  info.name = hello.name;
  info.incarnation = incarnation;
  info.greeting = hello.greeting;
  info.facts = end->facts();
  info.address = info.facts.remote;
  MOEBIUS_RETURN_IF_ERROR(watcher_.AdmitPeer(info));
  MutexLock lock(mutex_);
  Peer& peer = peers_[info.id];
  peer.info = info;
  peer.connection_id = hello.connection_id;
  peer.life = 1;
  ReactAt(clock_.Now() + options_.handshake_timeout, [this, id = info.id] {
    {
      MutexLock lock(mutex_);
      const Peer* peer = Find(id);
      if (peer == nullptr || peer->info.state != PeerState::kConnecting) return;
    }
    Kill(id, absl::DeadlineExceededError("not all lanes said hello in time"));
  });
  return info.id;
}

absl::Status Transport::Core::AttachAccepted(const End& end, const Hello& hello,
                                             uint64_t incarnation) {
  RemoveSilent(end);
  MOEBIUS_ASSIGN_OR_RETURN(const PeerId id, FindOrAdd(end, hello, incarnation));
  const size_t lane = LaneIndex(hello.lane);
  uint64_t connection_id = 0;
  {
    MutexLock lock(mutex_);
    Peer& peer = *Find(id);
    if (peer.greeted[lane]) {
      return absl::InvalidArgumentError(
          absl::StrCat("hello: the ", LaneName(hello.lane), " lane is there already"));
    }
    peer.ends[lane] = end;
    peer.greeted[lane] = true;
    connection_id = peer.connection_id;
  }
  end->Answer(id, OwnHello(hello.lane, connection_id));
  FinishAttach(id);
  return absl::OkStatus();
}

absl::Status Transport::Core::AttachDialed(const End& end, const Hello& hello,
                                           uint64_t incarnation) {
  PeerInfo info;
  {
    MutexLock lock(mutex_);
    Peer* peer = nullptr;
    for (auto& [id, candidate] : peers_) {
      if (candidate.ends[LaneIndex(hello.lane)] == end) peer = &candidate;
    }
    if (peer == nullptr) return absl::UnavailableError("the connection has ended");
    if (peer->connection_id != hello.connection_id) {
      return absl::InvalidArgumentError("hello: it answers another connection");
    }
    const bool is_first = std::none_of(peer->greeted.begin(), peer->greeted.end(),
                                       [](bool greeted) { return greeted; });
    if (!is_first && peer->info.incarnation != incarnation) {
      return absl::UnavailableError("the peer restarted while it was being connected");
    }
    peer->info.incarnation = incarnation;
    peer->info.name = hello.name;
    peer->info.greeting = hello.greeting;
    peer->info.facts = end->facts();
    peer->greeted[LaneIndex(hello.lane)] = true;
    info = peer->info;
  }
  if (hello.lane == Lane::kControl) MOEBIUS_RETURN_IF_ERROR(watcher_.AdmitPeer(info));
  FinishAttach(info.id);
  return absl::OkStatus();
}

void Transport::Core::FinishAttach(PeerId id) {
  PeerInfo info;
  uint64_t life = 0;
  {
    MutexLock lock(mutex_);
    Peer& peer = *Find(id);
    if (!std::all_of(peer.greeted.begin(), peer.greeted.end(), [](bool is) { return is; })) return;
    const absl::Duration now = clock_.Now();
    peer.info.state = PeerState::kConnected;
    peer.info.reason = absl::OkStatus();
    peer.reconnect_delay = options_.min_reconnect_delay;
    peer.detector.emplace(options_.failure, now);
    peer.next_beat = now + options_.failure.beat;
    info = peer.info;
    life = peer.life;
  }
  watcher_.OnPeerState(info);
  Tick(id, life);
}

// --- Connecting.

absl::StatusOr<Address> Transport::Core::Listen(const Address& address) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<LinkListener> listener,
                           provider_.Listen(address, *this));
  const Address chosen = listener->address();
  MutexLock lock(mutex_);
  listeners_.push_back(std::move(listener));
  return chosen;
}

absl::StatusOr<PeerId> Transport::Core::Connect(const Address& address) {
  PeerId id;
  {
    MutexLock lock(mutex_);
    if (peers_.size() >= options_.max_peers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("all ", options_.max_peers, " peers of ", options_.name, " are there"));
    }
    id = PeerId(next_peer_++);
    Peer& peer = peers_[id];
    peer.info.id = id;
    peer.info.dialed = true;
    peer.info.address = FormatAddress(address);
    peer.target = address;
    peer.reconnect_delay = options_.min_reconnect_delay;
  }
  React([this, id] { Dial(id); });
  return id;
}

void Transport::Core::Dial(PeerId id) {
  Address target;
  uint64_t life = 0;
  uint64_t connection_id = 0;
  {
    MutexLock lock(mutex_);
    Peer* peer = Find(id);
    if (peer == nullptr) return;
    life = ++peer->life;
    // Unlike any other of this process's connections, and of no meaning elsewhere.
    connection_id = (uint64_t{id.value()} << 32) | (life & 0xffffffff);
    peer->connection_id = connection_id;
    peer->greeted = {};
    peer->info.state = PeerState::kConnecting;
    target = peer->target;
  }
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    auto link = provider_.Dial(target, static_cast<Lane>(lane));
    if (!link.ok()) return Kill(id, link.status());
    const End end = MakeEnd(*std::move(link), true, static_cast<Lane>(lane));
    {
      MutexLock lock(mutex_);
      Find(id)->ends[lane] = end;
    }
    end->Start(id, OwnHello(static_cast<Lane>(lane), connection_id));
  }
  ReactAt(clock_.Now() + options_.handshake_timeout, [this, id, life] {
    {
      MutexLock lock(mutex_);
      const Peer* peer = Find(id);
      if (peer == nullptr || peer->life != life || peer->info.state != PeerState::kConnecting) {
        return;
      }
    }
    Kill(id, absl::DeadlineExceededError("it did not answer the hello in time"));
  });
}

void Transport::Core::Disconnect(PeerId id, const absl::Status& reason) {
  MOEBIUS_CHECK(!reason.ok());
  React([this, id, reason] {
    std::array<End, kNumLanes> ends;
    {
      MutexLock lock(mutex_);
      Peer* peer = Find(id);
      if (peer == nullptr) return;
      peer->forget = true;
      ends = peer->ends;
    }
    for (const End& end : ends) {
      if (end != nullptr) end->Leave(reason);
    }
    Kill(id, reason);
  });
}

// --- Life and death.

void Transport::Core::Tick(PeerId id, uint64_t life) {
  std::array<End, kNumLanes> ends;
  PeerInfo info;
  PeerState before = PeerState::kConnected;
  PeerState after = PeerState::kConnected;
  bool beat = false;
  {
    MutexLock lock(mutex_);
    Peer* peer = Find(id);
    if (peer == nullptr || peer->life != life || !peer->detector.has_value()) return;
    const absl::Duration now = clock_.Now();
    ends = peer->ends;
    for (const End& end : ends) peer->detector->OnHeard(end->last_heard());
    before = peer->info.state;
    after = peer->detector->Check(now);
    peer->info.reason = peer->detector->reason();
    if (after != PeerState::kDead) peer->info.state = after;
    info = peer->info;
    beat = now >= peer->next_beat;
    if (beat) peer->next_beat = now + options_.failure.beat;
    if (after != PeerState::kDead) {
      ReactAt(std::min(peer->next_beat,
                       std::max(peer->detector->next_check(), now + absl::Nanoseconds(1))),
              [this, id, life] { Tick(id, life); });
    }
  }
  if (after == PeerState::kDead) return Kill(id, info.reason);
  if (before != after) watcher_.OnPeerState(info);
  if (!beat) return;
  for (const End& end : ends) {
    // On the other lanes a beat flushes credits and shows whether the last frames arrived.
    if (end->lane() == Lane::kControl || end->HasUncredited()) end->SendBeat();
  }
}

void Transport::Core::OnEnded(LinkEnd& end, const absl::Status& reason) {
  React([this, weak = end.weak_from_this(), reason] { EndOf(weak.lock(), reason); });
}

void Transport::Core::EndOf(const End& end, const absl::Status& reason) {
  if (end == nullptr) return;
  PeerId owner;
  {
    MutexLock lock(mutex_);
    if (IsProtocolError(reason)) ++protocol_errors_;
    for (const auto& [id, peer] : peers_) {
      if (std::find(peer.ends.begin(), peer.ends.end(), end) != peer.ends.end()) owner = id;
    }
    silent_.remove(end);
    leaving_.erase(std::remove(leaving_.begin(), leaving_.end(), end), leaving_.end());
  }
  if (owner != PeerId()) return Kill(owner, reason);
  Retire(end);
}

void Transport::Core::Kill(PeerId id, const absl::Status& reason) {
  std::array<End, kNumLanes> ends;
  PeerInfo info;
  bool was_connected = false;
  absl::Duration delay;
  {
    MutexLock lock(mutex_);
    Peer* peer = Find(id);
    if (peer == nullptr) return;
    was_connected = peer->detector.has_value();
    ends = std::exchange(peer->ends, {});
    peer->detector.reset();
    ++peer->life;
    peer->info.state = PeerState::kDead;
    peer->info.reason = reason;
    delay = peer->reconnect_delay;
    peer->reconnect_delay = std::min(2 * delay, options_.max_reconnect_delay);
    if (was_connected) ++peers_died_;
    info = peer->info;
    if (!info.dialed || peer->forget) peers_.erase(id);
  }
  for (const End& end : ends) {
    if (end == nullptr) continue;
    end->Silence();
    end->FailSends(Dead(info, reason));
    Retire(end);
  }
  table_.FailPeer(id, Dead(info, reason));
  if (info.dialed || was_connected) watcher_.OnPeerState(info);
  MutexLock lock(mutex_);
  if (Find(id) != nullptr) ReactAt(clock_.Now() + delay, [this, id] { Dial(id); });
}

void Transport::Core::Retire(End end) {
  end->Silence();
  {
    MutexLock lock(mutex_);
    armed_sends_.erase(end.get());
    retired_.insert(std::move(end));  // its death may be reported twice
  }
  React([this] { SweepRetired(); });
}

void Transport::Core::SweepRetired() {
  // A caller that is inside Send may hold a link longer than the peer does; it must not be the one
  // that destroys it, as it may be inside a call of that link.
  std::vector<End> free;
  bool is_empty = true;
  {
    MutexLock lock(mutex_);
    for (auto end = retired_.begin(); end != retired_.end();) {
      if (end->use_count() > 1) {
        ++end;
        continue;
      }
      free.push_back(*end);
      end = retired_.erase(end);
    }
    is_empty = retired_.empty();
  }
  free.clear();
  if (!is_empty) ReactAt(clock_.Now() + kSweepDelay, [this] { SweepRetired(); });
}

void Transport::Core::Shutdown() {
  std::vector<std::unique_ptr<LinkListener>> listeners;
  {
    MutexLock lock(mutex_);
    listeners = std::move(listeners_);
  }
  listeners.clear();
  {
    MutexLock lock(reaction_mutex_);
    closed_ = true;
  }
  std::vector<End> ends;
  {
    MutexLock lock(mutex_);
    for (auto& [id, peer] : peers_) {
      for (End& end : peer.ends) {
        if (end != nullptr) ends.push_back(std::move(end));
      }
    }
    peers_.clear();
    ends.insert(ends.end(), silent_.begin(), silent_.end());
    silent_.clear();
    ends.insert(ends.end(), leaving_.begin(), leaving_.end());
    leaving_.clear();
    ends.insert(ends.end(), retired_.begin(), retired_.end());
    retired_.clear();
  }
  for (const End& end : ends) {
    end->Leave(absl::UnavailableError(absl::StrCat(options_.name, " shuts down")));
    end->Silence();
  }
}

}  // namespace moebius
