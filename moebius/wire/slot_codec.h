// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/strong_id.h"
#include "moebius/placement/placement.h"
#include "moebius/transport/frame/message.h"
#include "moebius/wire/greeting.h"

// How a process gets its part in a cluster, on the control lane. Layouts: docs/wire_format.md.

namespace moebius {

/// Which part of the model a participant holds, told by the router. A later one replaces it.
struct SlotAssignment {
  Role role = Role::kExpert;
  uint64_t number = 0;           // of the assignment, which its reports repeat
  int32_t index = -1;            // -1: no slot is free; stay connected as a spare
  int32_t count = 0;             // slots of this role, >= 1
  uint64_t term = 0;             // of the router, never smaller than one that came before
  Epoch epoch;                   // of the placement
  int64_t row_budget = 1;        // rows of the largest step: what standing room must hold
  std::vector<HeldExpert> held;  // experts: ascending and distinct
  std::vector<std::string> rank_addresses;  // attention: [count], own entry included

  bool is_spare() const { return index < 0; }
  friend bool operator==(const SlotAssignment&, const SlotAssignment&) = default;
};

/// How far a participant is with its slot.
enum class SlotPhase : uint8_t { kLoading = 1, kReady = 2, kFailed = 3 };

/// What a participant reports: any number of times while it loads, then once ready or failed.
struct SlotReady {
  uint64_t number = 0;  // of the assignment that it answers
  SlotPhase phase = SlotPhase::kLoading;
  absl::Status status;  // not OK exactly when failed
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;
  std::string tier;  // the kernels that it computes with
  int32_t threads = 0;
  int64_t kv_block_tokens = 0;  // attention only
  int64_t kv_num_blocks = 0;

  friend bool operator==(const SlotReady&, const SlotReady&) = default;
};

/// Most experts and slices that one assignment lists.
inline constexpr int64_t kMaxHeldExperts = 1 << 20;
/// Most slots of a role.
inline constexpr int32_t kMaxSlots = 1024;
/// Rows of the largest step that any configuration may ask for.
inline constexpr int64_t kMaxRowBudget = 1 << 16;

/// Bytes of an assignment's metadata at most, for `num_held` experts and `count` slots.
uint64_t MaxSlotAssignmentBytes(int64_t num_held, int32_t count);
/// The same of a report.
uint64_t MaxSlotReadyBytes();

/// The assignment must keep what its fields' comments say.
Message BuildSlotAssignment(const SlotAssignment& assignment);
/// INVALID_ARGUMENT for anything that BuildSlotAssignment could not have made.
absl::StatusOr<SlotAssignment> ParseSlotAssignment(const Message& message);

Message BuildSlotReady(const SlotReady& ready);
absl::StatusOr<SlotReady> ParseSlotReady(const Message& message);

}  // namespace moebius
