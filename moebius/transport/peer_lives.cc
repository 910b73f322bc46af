// SPDX-License-Identifier: Apache-2.0
// How peers live and die: beats, silence, ended links, and what is left of them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/transport/transport_core.h"

namespace moebius {
namespace {

// How often memory is given back that nobody has used since the last time.
constexpr absl::Duration kBufferAge = absl::Seconds(10);
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
    for (const End& end : ends) {
      peer->detector->OnHeard(end->last_heard());
      peer->detector->OnLane(end->lane(), end->HasUncredited(), end->consumed(), now);
    }
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
  AgeBuffers();
  for (const End& end : ends) {
    // On the other lanes a beat flushes credits and shows whether the last frames arrived.
    if (end->lane() == Lane::kControl || end->HasUncredited()) end->SendBeat();
  }
}

void Transport::Core::AgeBuffers() {
  if (buffers_.figures().idle_bytes == 0) return;
  {
    MutexLock lock(mutex_);
    if (std::exchange(is_ageing_, true)) return;
  }
  ReactAt(clock_.Now() + kBufferAge, [this] {
    buffers_.Age();
    {
      MutexLock lock(mutex_);
      is_ageing_ = false;
    }
    AgeBuffers();
  });
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
  AgeBuffers();
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
