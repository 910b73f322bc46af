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

}  // namespace

Transport::Core::Core(const TransportOptions& options, LinkProvider& provider, Reactor& reactor,
                      PeerWatcher& watcher)
    : options_(options),
      provider_(provider),
      reactor_(reactor),
      watcher_(watcher),
      clock_(reactor.clock()),
      table_(options.reservations),
      buffers_(options.max_idle_buffer_bytes),
      greeting_(options.greeting) {}

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
  return std::make_shared<LinkEnd>(options, std::move(link),
                                   LinkEndContext{clock_, *this, table_, buffers_, counters_});
}

Hello Transport::Core::OwnHello(Lane lane, uint64_t connection_id) const {
  Hello hello;
  hello.lane = lane;
  hello.connection_id = connection_id;
  hello.window_bytes = options_.window_bytes[LaneIndex(lane)];
  hello.max_message_bytes = options_.limits.max_message_bytes;
  hello.max_payload_bytes = static_cast<uint32_t>(options_.limits.max_payload_bytes);
  hello.name = options_.name;
  MutexLock lock(greeting_mutex_);
  hello.greeting = greeting_;
  return hello;
}

void Transport::Core::SetGreeting(std::string greeting) {
  MOEBIUS_CHECK_LE(greeting.size(), kMaxGreetingBytes);
  MutexLock lock(greeting_mutex_);
  greeting_ = std::move(greeting);
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

void Transport::Core::OnBadHello(LinkEnd& end, const absl::Status& reason) {
  React([this, weak = end.weak_from_this(), reason] {
    const End end = weak.lock();
    if (end == nullptr) return;
    {
      MutexLock lock(mutex_);
      ++protocol_errors_;
    }
    watcher_.OnLinkRefused(end->facts(), reason);
    Refuse(end, reason);
  });
}

void Transport::Core::Refuse(const End& end, const absl::Status& reason) {
  RemoveSilent(end);
  PeerId owner;
  bool is_crowded = false;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, peer] : peers_) {
      if (peer.ends[LaneIndex(end->lane())] == end) owner = id;
    }
    is_crowded = owner == PeerId() && leaving_.size() >= options_.max_silent_links;
    if (owner == PeerId() && !is_crowded) leaving_.push_back(end);
  }
  if (is_crowded) return Retire(end);
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
  std::array<End, kNumLanes> ends;
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
    ends = peer.ends;
    life = peer.life;
  }
  watcher_.OnPeerState(info);
  // The other side may have known of the connection first, and have begun to send.
  for (const End& end : ends) end->Admit();
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
    if (peer->info.state == PeerState::kDead) ++redials_;
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

}  // namespace moebius
