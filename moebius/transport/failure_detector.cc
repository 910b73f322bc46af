// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/failure_detector.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {

const char* PeerStateName(PeerState state) {
  switch (state) {
    case PeerState::kConnecting:
      return "connecting";
    case PeerState::kConnected:
      return "connected";
    case PeerState::kSuspect:
      return "suspect";
    case PeerState::kDead:
      return "dead";
  }
  return "?";
}

void FailureDetector::OnHeard(absl::Duration time) {
  // What was reported before proves nothing new.
  if (state_ == PeerState::kDead || time <= last_heard_) return;
  last_heard_ = time;
  if (state_ == PeerState::kSuspect) {
    state_ = PeerState::kConnected;
    reason_ = absl::OkStatus();
  }
}

void FailureDetector::OnLane(Lane lane, bool is_waiting, uint64_t consumed, absl::Duration now) {
  LaneProgress& progress = lanes_[LaneIndex(lane)];
  const bool was_waiting = progress.waiting_since != absl::InfiniteDuration();
  if (is_waiting && was_waiting && consumed == progress.consumed) return;
  progress = {consumed, is_waiting ? now : absl::InfiniteDuration()};
}

void FailureDetector::OnStreamEnded(absl::Status reason) {
  MOEBIUS_CHECK(!reason.ok());
  if (state_ == PeerState::kDead) return;
  state_ = PeerState::kDead;
  reason_ = std::move(reason);
}

PeerState FailureDetector::Check(absl::Duration now) {
  if (state_ == PeerState::kDead) return state_;
  if (now - next_check() > options_.suspect_after()) {
    last_heard_ = now - options_.beat;
    for (LaneProgress& lane : lanes_) {
      if (lane.waiting_since < now) lane.waiting_since = now;
    }
  }
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    const absl::Duration stall = now - lanes_[lane].waiting_since;
    if (stall < options_.stalled_after) continue;
    state_ = PeerState::kDead;
    reason_ = absl::UnavailableError(absl::StrCat("it has taken nothing from the ",
                                                  LaneName(static_cast<Lane>(lane)), " lane for ",
                                                  absl::FormatDuration(stall)));
    return state_;
  }
  const absl::Duration silence = now - last_heard_;
  if (silence >= options_.dead_after) {
    state_ = PeerState::kDead;
  } else if (silence >= options_.suspect_after()) {
    state_ = PeerState::kSuspect;
  } else {
    return state_;
  }
  reason_ =
      absl::UnavailableError(absl::StrCat("nothing heard for ", absl::FormatDuration(silence)));
  return state_;
}

absl::Duration FailureDetector::next_check() const {
  if (state_ == PeerState::kDead) return absl::InfiniteDuration();
  if (state_ == PeerState::kSuspect) return last_heard_ + options_.dead_after;
  return last_heard_ + options_.suspect_after();
}

}  // namespace moebius
