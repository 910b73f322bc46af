// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/slot_codec.h"

#include <limits>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

absl::Status Refuse(absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", why));
}

// Consecutive ids of one layer.
struct Run {
  uint32_t layer = 0;
  uint32_t first_id = 0;
  uint32_t num_ids = 0;
};
constexpr uint64_t kRunBytes = 12;
constexpr uint32_t kMaxLayer = 1 << 16;
constexpr uint32_t kMaxId = 1 << 24;

std::vector<Run> RunsOf(const std::vector<HeldExpert>& held) {
  std::vector<Run> runs;
  for (const HeldExpert& expert : held) {
    const auto layer = static_cast<uint32_t>(expert.layer.value());
    const auto id = static_cast<uint32_t>(expert.id.value());
    if (runs.empty() || runs.back().layer != layer ||
        runs.back().first_id + runs.back().num_ids != id) {
      runs.push_back({layer, id, 0});
    }
    ++runs.back().num_ids;
  }
  return runs;
}

absl::Status ReadHeld(ByteReader& in, std::vector<HeldExpert>* held) {
  const uint32_t num_runs = in.Read<uint32_t>();
  // Checked before any memory is taken for them.
  if (num_runs > in.remaining() / kRunBytes) return Refuse("slot", "runs of experts are missing");
  for (uint32_t i = 0; i < num_runs; ++i) {
    Run run;
    run.layer = in.Read<uint32_t>();
    run.first_id = in.Read<uint32_t>();
    run.num_ids = in.Read<uint32_t>();
    if (run.layer >= kMaxLayer || run.first_id >= kMaxId || run.num_ids == 0 ||
        run.num_ids > kMaxHeldExperts - static_cast<int64_t>(held->size())) {
      return Refuse("slot", absl::StrCat("layer ", run.layer, ", ", run.num_ids, " ids from ",
                                         run.first_id, " are out of range"));
    }
    const HeldExpert first{LayerId(static_cast<int32_t>(run.layer)),
                           ExpertId(static_cast<int32_t>(run.first_id))};
    if (!held->empty() && !(held->back() < first)) return Refuse("slot", "experts not ascending");
    for (uint32_t id = 0; id < run.num_ids; ++id) {
      held->push_back({first.layer, ExpertId(first.id.value() + static_cast<int32_t>(id))});
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAddresses(ByteReader& in, std::vector<std::string>* addresses) {
  const uint32_t count = in.Read<uint32_t>();
  if (count > static_cast<uint32_t>(kMaxSlots)) return Refuse("slot", "too many addresses");
  for (uint32_t i = 0; i < count && in.is_complete(); ++i) {
    addresses->push_back(in.ReadText(kMaxGreetingAddress));
  }
  return absl::OkStatus();
}

absl::Status CheckAssignment(const SlotAssignment& slot) {
  if (slot.count < 1 || slot.count > kMaxSlots || slot.index < -1 || slot.index >= slot.count) {
    return Refuse("slot", absl::StrCat("index ", slot.index, " of ", slot.count));
  }
  if (slot.row_budget < 1 || slot.row_budget > kMaxRowBudget) {
    return Refuse("slot", absl::StrCat("a row budget of ", slot.row_budget));
  }
  const bool is_rank = slot.role == Role::kAttention && !slot.is_spare();
  if (slot.rank_addresses.size() != (is_rank ? static_cast<size_t>(slot.count) : 0)) {
    return Refuse("slot",
                  absl::StrCat(slot.rank_addresses.size(), " addresses for index ", slot.index,
                               " of ", slot.count, " ", RoleName(slot.role), " slots"));
  }
  if (!slot.held.empty() && (slot.role != Role::kExpert || slot.is_spare())) {
    return Refuse("slot", "experts for one that holds none");
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t MaxSlotAssignmentBytes(int64_t num_held, int32_t count) {
  return 64 + kRunBytes * static_cast<uint64_t>(num_held) +
         (2 + kMaxGreetingAddress) * static_cast<uint64_t>(count);
}

uint64_t MaxSlotReadyBytes() { return kMaxStatusBytes + kMaxGreetingText + 64; }

Message BuildSlotAssignment(const SlotAssignment& assignment) {
  MOEBIUS_DCHECK(CheckAssignment(assignment).ok());
  const std::vector<Run> runs = RunsOf(assignment.held);
  ByteWriter out;
  out.Write(static_cast<uint8_t>(assignment.role));
  out.Write(assignment.index);
  out.Write(assignment.count);
  out.Write(assignment.row_budget);
  out.Write(static_cast<uint32_t>(runs.size()));
  for (const Run& run : runs) {
    out.Write(run.layer);
    out.Write(run.first_id);
    out.Write(run.num_ids);
  }
  out.Write(static_cast<uint32_t>(assignment.rank_addresses.size()));
  for (const std::string& address : assignment.rank_addresses) out.WriteText(address);
  Message message;
  message.key.kind = kAssignSlotKind;
  message.key.step = assignment.number;
  message.term = assignment.term;
  message.epoch = assignment.epoch.value();
  message.metadata = out.Share();
  return message;
}

absl::StatusOr<SlotAssignment> ParseSlotAssignment(const Message& message) {
  ByteReader in(message.metadata.span());
  SlotAssignment slot;
  const uint8_t role = in.Read<uint8_t>();
  slot.role = static_cast<Role>(role);
  slot.index = in.Read<int32_t>();
  slot.count = in.Read<int32_t>();
  slot.row_budget = in.Read<int64_t>();
  slot.number = message.key.step;
  slot.term = message.term;
  slot.epoch = Epoch(message.epoch);
  MOEBIUS_RETURN_IF_ERROR(ReadHeld(in, &slot.held));
  MOEBIUS_RETURN_IF_ERROR(ReadAddresses(in, &slot.rank_addresses));
  if (!in.AtEnd() || message.num_rows != 0) {
    return Refuse("slot", "its length is not its content's");
  }
  if (slot.role != Role::kExpert && slot.role != Role::kAttention) {
    return Refuse("slot", absl::StrCat("role ", int{role}, " has no slots"));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckAssignment(slot));
  return slot;
}

Message BuildSlotReady(const SlotReady& ready) {
  MOEBIUS_DCHECK_EQ(ready.status.ok(), ready.phase != SlotPhase::kFailed);
  ByteWriter out;
  out.Write(static_cast<uint8_t>(ready.phase));
  out.WriteText(EncodeStatus(ready.status));
  out.Write(ready.loaded_bytes);
  out.Write(ready.total_bytes);
  out.WriteText(absl::string_view(ready.tier).substr(0, kMaxGreetingText));
  out.Write(ready.threads);
  out.Write(ready.kv_block_tokens);
  out.Write(ready.kv_num_blocks);
  Message message;
  message.key.kind = kSlotReadyKind;
  message.key.step = ready.number;
  message.metadata = out.Share();
  return message;
}

absl::StatusOr<SlotReady> ParseSlotReady(const Message& message) {
  ByteReader in(message.metadata.span());
  SlotReady ready;
  ready.number = message.key.step;
  const uint8_t phase = in.Read<uint8_t>();
  ready.phase = static_cast<SlotPhase>(phase);
  ready.status = DecodeStatus(in.ReadText(kMaxStatusBytes));
  ready.loaded_bytes = in.Read<int64_t>();
  ready.total_bytes = in.Read<int64_t>();
  ready.tier = in.ReadText(kMaxGreetingText);
  ready.threads = in.Read<int32_t>();
  ready.kv_block_tokens = in.Read<int64_t>();
  ready.kv_num_blocks = in.Read<int64_t>();
  if (!in.AtEnd() || message.num_rows != 0) {
    return Refuse("slot report", "its length is not its content's");
  }
  if (phase < static_cast<uint8_t>(SlotPhase::kLoading) ||
      phase > static_cast<uint8_t>(SlotPhase::kFailed)) {
    return Refuse("slot report", absl::StrCat(int{phase}, " is no phase"));
  }
  if (ready.status.ok() == (ready.phase == SlotPhase::kFailed)) {
    return Refuse("slot report", "its status is not its phase's");
  }
  if (ready.loaded_bytes < 0 || ready.total_bytes < 0 || ready.threads < 0 ||
      ready.kv_block_tokens < 0 || ready.kv_num_blocks < 0) {
    return Refuse("slot report", "a count is negative");
  }
  return ready;
}

}  // namespace moebius
