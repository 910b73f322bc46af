// SPDX-License-Identifier: Apache-2.0
#include "router_service/slot_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius {
namespace {

// 1234567 as "1,234,567".
std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

}  // namespace

std::string ProgressWords(int64_t loaded, int64_t total) {
  return absl::StrCat(Grouped(loaded), " of ", Grouped(total), " bytes");
}

absl::string_view SlotStateName(SlotState state) {
  switch (state) {
    case SlotState::kEmpty:
      return "empty";
    case SlotState::kLoading:
      return "loading";
    case SlotState::kCanary:
      return "canary";
    case SlotState::kUsable:
      return "usable";
    case SlotState::kDraining:
      return "draining";
    case SlotState::kFailed:
      return "failed";
  }
  return "unknown";
}

SlotTable::SlotTable(Role role, int32_t count) : role_(role) {
  MOEBIUS_CHECK_GE(count, 0);
  slots_.resize(static_cast<size_t>(count));
}

std::optional<int32_t> SlotTable::IndexOf(PeerId peer) const {
  for (int32_t index = 0; index < count(); ++index) {
    if (slot(index).state != SlotState::kEmpty && slot(index).peer == peer) return index;
  }
  return std::nullopt;
}

std::optional<int32_t> SlotTable::Choose(const std::string& name, int32_t wanted) const {
  const auto is_free = [this](int32_t index) { return slot(index).state == SlotState::kEmpty; };
  for (int32_t index = 0; index < count(); ++index) {
    if (is_free(index) && !name.empty() && slot(index).name == name) return index;
  }
  if (wanted >= 0 && wanted < count() && is_free(wanted)) return wanted;
  std::optional<int32_t> lowest;
  for (int32_t index = 0; index < count(); ++index) {
    if (!is_free(index)) continue;
    if (slot(index).name.empty()) return index;
    if (!lowest.has_value()) lowest = index;
  }
  return lowest;
}

void SlotTable::Fill(int32_t index, const Spare& process) {
  Slot filled;
  filled.state = SlotState::kLoading;
  filled.peer = process.peer;
  filled.name = process.name;
  filled.pid = process.greeting.pid;
  filled.data_address = process.greeting.data_address;
  filled.admin_address = process.greeting.admin_address;
  filled.http_address = process.greeting.http_address;
  slots_[static_cast<size_t>(index)] = filled;
}

std::optional<int32_t> SlotTable::Join(PeerId peer, const std::string& name,
                                       const Greeting& greeting) {
  MOEBIUS_CHECK(!IndexOf(peer).has_value());
  const std::optional<int32_t> index = Choose(name, greeting.wanted_index);
  const Spare process{peer, name, greeting};
  if (index.has_value()) {
    Fill(*index, process);
  } else {
    spares_.push_back(process);
  }
  return index;
}

std::optional<int32_t> SlotTable::Leave(PeerId peer) {
  const std::optional<int32_t> index = IndexOf(peer);
  if (!index.has_value()) {
    spares_.erase(std::remove_if(spares_.begin(), spares_.end(),
                                 [peer](const Spare& spare) { return spare.peer == peer; }),
                  spares_.end());
    return std::nullopt;
  }
  Slot empty;
  empty.name = slot(*index).name;
  slots_[static_cast<size_t>(*index)] = empty;
  if (spares_.empty()) return std::nullopt;
  const Spare next = spares_.front();
  spares_.erase(spares_.begin());
  Fill(*index, next);
  return index;
}

void SlotTable::SetState(int32_t index, PeerId peer, SlotState state, const absl::Status& status) {
  Slot& changed = slots_[static_cast<size_t>(index)];
  if (changed.state == SlotState::kEmpty || changed.peer != peer) return;
  changed.state = state;
  changed.status = status;
}

void SlotTable::SetReport(int32_t index, PeerId peer, const SlotReady& ready) {
  Slot& changed = slots_[static_cast<size_t>(index)];
  if (changed.state == SlotState::kEmpty || changed.peer != peer) return;
  changed.ready = ready;
}

void SlotTable::SetSuspect(PeerId peer, bool suspect) {
  if (const std::optional<int32_t> index = IndexOf(peer)) {
    slots_[static_cast<size_t>(*index)].suspect = suspect;
  }
}

std::string WhyNotUsable(const Slot& slot) {
  if (slot.is_usable()) return "";
  switch (slot.state) {
    case SlotState::kEmpty:
      return slot.name.empty() ? "nobody has joined" : "it has gone";
    case SlotState::kLoading:
      return slot.ready.total_bytes == 0
                 ? "loading"
                 : absl::StrCat("loading ",
                                ProgressWords(slot.ready.loaded_bytes, slot.ready.total_bytes));
    case SlotState::kCanary:
      return "loaded, its canary row has not come back";
    case SlotState::kUsable:
      return "suspect: nothing heard of it for a while";
    case SlotState::kDraining:
      return "draining: it finishes what it has begun, and leaves";
    case SlotState::kFailed:
      break;
  }
  const std::string hint = HintOf(slot.status);
  return hint.empty() ? std::string(slot.status.message())
                      : absl::StrCat(slot.status.message(), " (", hint, ")");
}

std::vector<std::string> SlotTable::Missing() const {
  std::vector<std::string> missing;
  for (int32_t index = 0; index < count(); ++index) {
    const Slot& look = slot(index);
    if (look.is_usable()) continue;
    missing.push_back(absl::StrCat(RoleName(role_), " slot ", index, " of ", count(),
                                   look.name.empty() ? "" : absl::StrCat(" (", look.name, ")"),
                                   ": ", WhyNotUsable(look)));
  }
  return missing;
}

}  // namespace moebius
