// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/transport/address.h"
#include "moebius/transport/lane.h"

namespace moebius {

/// What one direction of a link suffers. Probabilities are per frame, in [0, 1].
struct LinkFaults {
  /// Each frame is late by a time drawn evenly from [min_delay, max_delay]; a link never reorders,
  /// links to different peers do.
  absl::Duration min_delay = absl::ZeroDuration();
  absl::Duration max_delay = absl::ZeroDuration();
  float lose = 0;
  float duplicate = 0;
  float corrupt = 0;  // one bit of header or payload
  /// What every frame says in the place of its wire version: a process of another release.
  std::optional<uint16_t> wire_version;
  /// Frames vanish without a sign: a partition, or one half of a half-open connection.
  bool cut = false;
  /// Frames wait until it is over: a stopped process, a peer that never reads.
  bool stop = false;
  uint64_t bytes_per_second = 0;  // 0: no limit; a slow peer
  uint64_t queue_bytes = 0;       // 0: 1 MiB; how much may be late before writers are refused
};

/// Which frames suffer what. Changes take effect for frames that are written afterwards; a stop or
/// a cut that ends, at once. Draws depend on the seed, the link's number and the frame's number
/// alone. Thread-safe.
class FaultPlan {
 public:
  explicit FaultPlan(uint64_t seed) : seed_(seed) {}

  /// Faults of everything that is sent by this side of the plan's links, in all lanes.
  void Set(const LinkFaults& faults);
  /// For links dialed to, or accepted from listening at, `port`; the direction is as seen from the
  /// end that this plan's provider made.
  void SetForPort(uint16_t port, const LinkFaults& faults);
  /// No faults any more.
  void Clear();

  LinkFaults FaultsOf(uint16_t port) const;
  uint64_t seed() const { return seed_; }

 private:
  const uint64_t seed_;
  mutable Mutex mutex_;
  LinkFaults all_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<uint16_t, LinkFaults> by_port_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
