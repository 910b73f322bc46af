// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/transport/address.h"
#include "moebius/transport/transport.h"
#include "moebius/wire/greeting.h"
#include "moebius/wire/slot_codec.h"

namespace moebius {

/// The part of an expert or attention service that a router tells what to hold.
class Participant {
 public:
  virtual ~Participant() = default;

  /// Takes the slot: loads what it says and makes the standing reservations, so that work may come
  /// the moment the answer has gone. Called on the joiner's thread, one call at a time, and again
  /// whenever a router sends another slot: only what changed is to be done, and with several
  /// routers the work of the others goes on meanwhile. `slot.held` and `slot.row_budget` are what
  /// all routers ask for together (MergeSlots). `progress` takes
  /// bytes loaded and bytes to load; it may be called from any thread until the call returns.
  /// A failure is told to the router; what was held before stays.
  using Progress = std::function<void(int64_t loaded, int64_t total)>;
  virtual absl::StatusOr<SlotReady> Load(const SlotAssignment& slot, const Progress& progress) = 0;

  /// A router's process is there, or is gone with all that it had begun here. From the reactor:
  /// never blocks. Up and down of one router alternate; `router.incarnation` tells lives apart.
  virtual void OnRouterUp(const PeerInfo& router) = 0;
  virtual void OnRouterDown(const PeerInfo& router) = 0;

  /// Any other peer that passed CheckGreeting: between attention ranks. From the reactor.
  virtual void OnPeerState(const PeerInfo& peer) {}
};

/// What a participant must hold to serve the slot of one router beside those that `others` have
/// given: every expert that one of them asks for, ascending. FAILED_PRECONDITION where the slot's
/// row budget is above the others': their standing room is in use and does not grow. Pure.
absl::StatusOr<SlotAssignment> MergeSlots(const SlotAssignment& slot,
                                          absl::Span<const SlotAssignment> others);

/// Where a participant stands, in words too.
struct JoinState {
  enum class Phase { kDialing, kWaiting, kSpare, kLoading, kReady, kFailed };
  Phase phase = Phase::kDialing;
  std::string words;  // "loading 3,145,728 of 8,388,608 bytes"
  int32_t index = -1;
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;

  bool is_ready() const { return phase == Phase::kReady; }
};

struct JoinerOptions {
  Greeting own;
  std::vector<NearConfig> near;                  // to say in what a router's configuration differs
  std::vector<Address> routers;                  // each once; attention ranks have one
  uint64_t max_slot_bytes = uint64_t{16} << 20;  // of an assignment's metadata
  /// What happens, a sentence each, for the log; may be null. From any thread.
  std::function<void(const std::string&)> on_notice;
  /// No router and this process can ever work together (FAILED_PRECONDITION of each): the process
  /// should end. Once at most, from the reactor; may be null.
  std::function<void(const absl::Status&)> on_refused;
};

/// A participant's side of membership: dials its routers for as long as it lives, greets, takes the
/// slots that it is given, and reports. Give it to Transport::Make as the watcher, then Start it.
/// Routers know nothing of one another: each gives a slot of its own, and what a router that has
/// gone asked for stays, for when it comes back.
///
/// Invariants:
/// 1. Only a slot of a router's present life is reported on, and only its last one.
/// 2. Within one life of a router an assignment of a smaller term is answered ABORTED.
///
/// Thread-safe.
class Joiner final : public PeerWatcher {
 public:
  /// `participant` outlives the joiner.
  Joiner(const JoinerOptions& options, Participant& participant);
  ~Joiner() override;

  /// `transport` was made with this object as its watcher, which therefore outlives it.
  absl::Status Start(Transport& transport);
  /// Waits for a Load that is under way. No call of the participant begins afterwards.
  void Stop();

  /// Tells the routers, now and for each slot to come, that no work is to be sent here: `why` is
  /// not OK. What was sent is still the participant's to answer.
  void Retire(const absl::Status& why);

  /// With several routers: ready when one has it ready; the words of all.
  JoinState state() const;

  absl::Status AdmitPeer(const PeerInfo& peer) override;
  void OnPeerState(const PeerInfo& peer) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
