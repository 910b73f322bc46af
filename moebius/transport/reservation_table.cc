// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/reservation_table.h"

#include <compare>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius {
namespace {}  // namespace

struct ReservationTable::Reservation {
  ReservationSpec spec;
  uint64_t id = 0;
  uint64_t bytes = 0;
  // Guarded by the table's mutex.
  bool ended = false;
  uint32_t arriving = 0;
  uint32_t delivered = 0;
  SpareSet<MessageKey> seen;  // keys of a kStep reservation, arriving or delivered
};

ReservationTable::Key ReservationTable::KeyOf(ReservationScope scope, PeerId source,
                                              const MessageKey& key) {
  Key out{scope, source, key};
  if (scope == ReservationScope::kMessage) return out;
  out.key = MessageKey{key.kind};
  if (scope == ReservationScope::kStep) {
    out.key.step = key.step;
    out.key.attempt = key.attempt;
  } else {
    out.source = PeerId();
  }
  return out;
}

absl::StatusOr<ReservationId> ReservationTable::Add(ReservationSpec spec) {
  MOEBIUS_CHECK(spec.on_delivery != nullptr);
  MOEBIUS_CHECK_GE(spec.max_messages, 1u);
  // Both factors are bounded, so the product cannot wrap.
  MOEBIUS_CHECK_LE(spec.max_message_bytes, kMaxMessageBytes);
  const uint64_t bytes = spec.max_message_bytes * spec.max_messages;
  MutexLock lock(mutex_);
  if (by_id_.size() >= limits_.max_reservations) {
    return absl::ResourceExhaustedError(
        absl::StrCat("reservations: all ", limits_.max_reservations, " are in use"));
  }
  if (bytes > limits_.max_bytes - reserved_bytes_) {
    return WithHint(absl::ResourceExhaustedError(
                        absl::StrCat("reservations: ", bytes, " bytes asked, ", reserved_bytes_,
                                     " of ", limits_.max_bytes, " are in use")),
                    "raise the reservation limit or lower the row budget of a step");
  }
  const Key key = KeyOf(spec.scope, spec.source, spec.key);
  const auto entry = std::allocate_shared<Reservation>(SpareAllocator<Reservation>());
  entry->spec = std::move(spec);
  entry->bytes = bytes;
  if (!by_key_.emplace(key, entry).second) {
    return absl::AlreadyExistsError(absl::StrCat("reservations: kind ", key.key.kind.value(),
                                                 ", step ", key.key.step, ", attempt ",
                                                 key.key.attempt, " is reserved already"));
  }
  entry->id = next_id_++;
  by_id_[entry->id] = entry;
  reserved_bytes_ += bytes;
  if (entry->spec.deadline != absl::InfiniteDuration()) {
    deadlines_.emplace(entry->spec.deadline, entry->id);
  }
  return ReservationId(entry->id);
}

void ReservationTable::Remove(const Entry& entry) {
  MOEBIUS_CHECK(!entry->ended);
  entry->ended = true;
  by_id_.erase(entry->id);
  by_key_.erase(KeyOf(entry->spec.scope, entry->spec.source, entry->spec.key));
  deadlines_.erase({entry->spec.deadline, entry->id});
  reserved_bytes_ -= entry->bytes;
}

bool ReservationTable::Cancel(ReservationId id) {
  Entry entry;  // destroyed outside the lock, with what its delivery captured
  MutexLock lock(mutex_);
  const auto found = by_id_.find(id.value());
  if (found == by_id_.end()) return false;
  entry = found->second;
  Remove(entry);
  return true;
}

absl::Status ReservationTable::CheckRoom(const Reservation& reservation,
                                         uint64_t message_bytes) const {
  const ReservationSpec& spec = reservation.spec;
  if (message_bytes > spec.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", message_bytes, " bytes; room is kept for ", spec.max_message_bytes));
  }
  const bool is_kind = spec.scope == ReservationScope::kKind;
  if (reservation.arriving + (is_kind ? 0 : reservation.delivered) < spec.max_messages) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(spec.max_messages, " messages of this kind are arriving already"));
}

std::optional<ReservationTable::Claim> ReservationTable::Match(PeerId source, Lane lane,
                                                               const Message& header,
                                                               uint64_t message_bytes) {
  Entry refusing;
  absl::Status room;
  {
    MutexLock lock(mutex_);
    for (const ReservationScope scope :
         {ReservationScope::kMessage, ReservationScope::kStep, ReservationScope::kKind}) {
      const auto found = by_key_.find(KeyOf(scope, source, header.key));
      if (found == by_key_.end()) continue;
      const Entry& entry = found->second;
      room = CheckRoom(*entry, message_bytes);
      if (!room.ok()) {
        if (scope == ReservationScope::kKind) refusing = entry;
        break;
      }
      if (scope == ReservationScope::kStep && !entry->seen.insert(header.key).second) break;
      ++entry->arriving;
      return std::optional<Claim>(std::in_place, *this, entry, source, header.key);
    }
  }
  if (refusing != nullptr && refusing->spec.on_refused != nullptr) {
    refusing->spec.on_refused({source, lane, header, room});
  }
  return std::nullopt;
}

bool ReservationTable::Finish(const Entry& entry, const MessageKey& key) {
  MutexLock lock(mutex_);
  if (entry->ended) return false;
  --entry->arriving;
  if (entry->spec.scope == ReservationScope::kKind) return true;
  if (++entry->delivered == entry->spec.max_messages) Remove(entry);
  return true;
}

void ReservationTable::Release(const Entry& entry, const MessageKey& key) {
  MutexLock lock(mutex_);
  if (entry->ended) return;
  --entry->arriving;
  entry->seen.erase(key);
}

void ReservationTable::Fail(const std::vector<Entry>& ended, const absl::Status& reason) {
  for (const Entry& entry : ended) {
    entry->spec.on_delivery(Delivery{entry->spec.source, Lane::kControl, reason});
  }
}

void ReservationTable::FailPeer(PeerId peer, const absl::Status& reason) {
  std::vector<Entry> ended;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, entry] : by_key_) {
      if (key.scope != ReservationScope::kKind && key.source == peer) ended.push_back(entry);
    }
    for (const Entry& entry : ended) Remove(entry);
  }
  Fail(ended, reason);
}

void ReservationTable::Expire(absl::Duration now) {
  std::vector<Entry> ended;
  {
    MutexLock lock(mutex_);
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      ended.push_back(by_id_.at(deadlines_.begin()->second));
      Remove(ended.back());
    }
  }
  for (const Entry& entry : ended) {
    const MessageKey& key = entry->spec.key;
    Fail({entry}, absl::DeadlineExceededError(absl::StrCat(
                      "waited for kind ", key.kind.value(), ", step ", key.step, ", layer ",
                      key.layer, " of peer ", entry->spec.source.value(), ": ", entry->delivered,
                      " of ", entry->spec.max_messages, " messages came")));
  }
}

absl::Duration ReservationTable::next_deadline() const {
  MutexLock lock(mutex_);
  return deadlines_.empty() ? absl::InfiniteDuration() : deadlines_.begin()->first;
}

uint64_t ReservationTable::reserved_bytes() const {
  MutexLock lock(mutex_);
  return reserved_bytes_;
}

size_t ReservationTable::num_reservations() const {
  MutexLock lock(mutex_);
  return by_id_.size();
}

ReservationTable::Claim::~Claim() {
  if (entry_ != nullptr && !finished_) table_->Release(entry_, key_);
}

ReservationTable::Claim::Claim(Claim&& other) noexcept
    : table_(other.table_),
      entry_(std::move(other.entry_)),
      source_(other.source_),
      key_(other.key_),
      finished_(other.finished_) {}

bool ReservationTable::Claim::Deliver(Lane lane, Message message) {
  MOEBIUS_CHECK(entry_ != nullptr && !finished_);
  finished_ = true;
  if (!table_->Finish(entry_, key_)) return false;
  entry_->spec.on_delivery(Delivery{source_, lane, std::move(message)});
  return true;
}

}  // namespace moebius
