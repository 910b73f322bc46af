// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/transport/lane.h"

namespace moebius {

/// A peer seen from here. Values only rise within one connection, save suspect → connected.
enum class PeerState { kConnecting, kConnected, kSuspect, kDead };

const char* PeerStateName(PeerState state);

/// Silence is counted from the last frame of any lane; a stall from the last credit of one lane.
struct FailureDetectorOptions {
  absl::Duration beat = absl::Milliseconds(150);
  int suspect_after_beats = 3;
  absl::Duration dead_after = absl::Seconds(1);
  /// A peer that speaks but consumes nothing of what it was sent. Known at the next beat, so it is
  /// cut within five seconds.
  absl::Duration stalled_after = absl::Seconds(4);

  absl::Duration suspect_after() const { return suspect_after_beats * beat; }
};

/// Decides from what is heard of one peer whether it is connected, suspect or dead. A pure state
/// machine: time comes in as an argument and never steps back.
///
/// Invariants:
/// 1. suspect after exactly suspect_after() of silence, dead after dead_after; dead is for good.
/// 2. Anything heard makes a suspect peer connected again.
/// 3. A check that comes late by more than suspect_after() judges nobody: it was this process that
///    stood still (a stopped process, a sleeping machine), so silence counts from one beat ago and
///    stalls from now.
/// 4. dead at the first check at which a lane has waited for a credit for stalled_after.
///
/// Not thread-safe.
class FailureDetector {
 public:
  FailureDetector(const FailureDetectorOptions& options, absl::Duration now)
      : options_(options), last_heard_(now) {}

  /// A frame arrived at `time`.
  void OnHeard(absl::Duration time);
  /// The peer has said that it consumed the first `consumed` frames of a lane; `is_waiting`: more
  /// have been sent.
  void OnLane(Lane lane, bool is_waiting, uint64_t consumed, absl::Duration now);
  /// The stream ended: dead at once.
  void OnStreamEnded(absl::Status reason);
  /// Draws the conclusions of silence and stalls until `now`.
  PeerState Check(absl::Duration now);
  /// When silence may next decide something new. Infinite once dead.
  absl::Duration next_check() const;

  PeerState state() const { return state_; }
  /// Why the peer is suspect or dead; OK while it is connected.
  const absl::Status& reason() const { return reason_; }

 private:
  struct LaneProgress {
    uint64_t consumed = 0;
    absl::Duration waiting_since = absl::InfiniteDuration();
  };

  FailureDetectorOptions options_;
  absl::Duration last_heard_;
  std::array<LaneProgress, kNumLanes> lanes_;
  PeerState state_ = PeerState::kConnected;
  absl::Status reason_;
};

}  // namespace moebius
