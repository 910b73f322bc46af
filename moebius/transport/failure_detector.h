// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace moebius {

/// A peer seen from here. Values only rise within one connection, save suspect → connected.
enum class PeerState { kConnecting, kConnected, kSuspect, kDead };

const char* PeerStateName(PeerState state);

/// PROTOCOL item 6. Silence is counted from the last frame of any lane.
struct FailureDetectorOptions {
  absl::Duration beat = absl::Milliseconds(150);
  int suspect_after_beats = 3;
  absl::Duration dead_after = absl::Seconds(1);

  absl::Duration suspect_after() const { return suspect_after_beats * beat; }
};

/// Decides from what is heard of one peer whether it is connected, suspect or dead. A pure state
/// machine: time comes in as an argument and never steps back.
///
/// Invariants:
/// 1. suspect after exactly suspect_after() of silence, dead after dead_after; dead is for good.
/// 2. Anything heard makes a suspect peer connected again.
/// 3. A check that comes late by more than suspect_after() judges nobody: it was this process that
///    stood still (a stopped process, a sleeping machine), so silence counts from one beat ago.
///
/// Not thread-safe.
class FailureDetector {
 public:
  FailureDetector(const FailureDetectorOptions& options, absl::Duration now)
      : options_(options), last_heard_(now) {}

  /// A frame arrived at `time`.
  void OnHeard(absl::Duration time);
  /// The stream ended: dead at once.
  void OnStreamEnded(absl::Status reason);
  /// Draws the conclusions of silence until `now`.
  PeerState Check(absl::Duration now);
  /// When Check may next decide something new. Infinite once dead.
  absl::Duration next_check() const;

  PeerState state() const { return state_; }
  /// Why the peer is suspect or dead; OK while it is connected.
  const absl::Status& reason() const { return reason_; }

 private:
  FailureDetectorOptions options_;
  absl::Duration last_heard_;
  PeerState state_ = PeerState::kConnected;
  absl::Status reason_;
};

}  // namespace moebius
