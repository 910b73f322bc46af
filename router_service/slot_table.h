// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "moebius/base/strong_id.h"
#include "moebius/wire/greeting.h"
#include "moebius/wire/slot_codec.h"

namespace moebius {

/// How far the process in a slot is: joining, loading, canary, usable, draining, and dead again
/// (empty).
enum class SlotState {
  kEmpty,    // nobody is there
  kLoading,  // assigned, has not said ready
  kCanary,   // ready; a canary row has not come back yet
  kUsable,
  kDraining,  // it finishes what it has begun, and leaves
  kFailed,    // it could not load, or the canary did not come back
};
absl::string_view SlotStateName(SlotState state);  // "empty", "loading", …

/// One slot and the process in it.
struct Slot {
  SlotState state = SlotState::kEmpty;
  bool suspect = false;  // no new work while it is silent
  PeerId peer;           // meaningful unless empty
  std::string name;      // of the process, or of the last one where the slot is empty
  uint64_t pid = 0;
  std::string data_address, admin_address, http_address;
  absl::Status status;  // why it failed
  SlotReady ready;      // the last report
  bool is_usable() const { return state == SlotState::kUsable && !suspect; }
  /// What it has begun goes on there.
  bool goes_on() const { return is_usable() || (state == SlotState::kDraining && !suspect); }
};

/// Which process plays which part of one role. Pure: no clock, lock or transport.
///
/// Invariants:
/// 1. A process has one slot, or is a spare; a slot has at most one process.
/// 2. A process that comes back under its name gets its old slot while that is free; else the slot
///    that it wants, else one that nobody had, else the lowest free one.
/// 3. A slot that becomes free goes to the spare that has waited longest.
class SlotTable {
 public:
  /// `count` >= 0.
  SlotTable(Role role, int32_t count);

  Role role() const { return role_; }
  int32_t count() const { return static_cast<int32_t>(slots_.size()); }
  const Slot& slot(int32_t index) const { return slots_[static_cast<size_t>(index)]; }
  /// The slot of a process, or nothing for a spare and a stranger.
  std::optional<int32_t> IndexOf(PeerId peer) const;
  int32_t num_spares() const { return static_cast<int32_t>(spares_.size()); }

  /// A process arrived: its slot, kLoading, or nothing: it is a spare.
  std::optional<int32_t> Join(PeerId peer, const std::string& name, const Greeting& greeting);

  /// A process has gone. When a spare took its slot: that slot, kLoading.
  std::optional<int32_t> Leave(PeerId peer);

  /// What is in slot `index` changed. No effect where another process has it by now.
  void SetState(int32_t index, PeerId peer, SlotState state, const absl::Status& status);
  void SetReport(int32_t index, PeerId peer, const SlotReady& ready);
  /// No effect for spares and strangers.
  void SetSuspect(PeerId peer, bool suspect);

  /// What keeps slots from being usable, a sentence each, ascending; empty: all are.
  std::vector<std::string> Missing() const;

 private:
  struct Spare {
    PeerId peer;
    std::string name;
    Greeting greeting;
  };
  void Fill(int32_t index, const Spare& process);
  std::optional<int32_t> Choose(const std::string& name, int32_t wanted) const;

  const Role role_;
  std::vector<Slot> slots_;
  std::vector<Spare> spares_;  // longest waiting first
};

/// What keeps a slot from being usable, in words; empty: it is.
std::string WhyNotUsable(const Slot& slot);

/// "3,145,728 of 8,388,608 bytes".
std::string ProgressWords(int64_t loaded, int64_t total);

}  // namespace moebius
