// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/base/spare_memory.h"
#include "moebius/base/strong_id.h"
#include "moebius/transport/frame/message.h"
#include "moebius/transport/lane.h"

namespace moebius {

/// How much of its key a reservation fixes.
enum class ReservationScope {
  kMessage,  // exactly this message of this peer
  kStep,     // any message of this kind, step and attempt of this peer
  kKind,     // any message of this kind of any peer: announcements and questions
};

/// A message that arrived, or the end of a reservation.
struct Delivery {
  PeerId source;  // for a failed kKind reservation: none
  Lane lane = Lane::kControl;
  absl::StatusOr<Message> message;
};

/// A message that began to arrive where its kind was expected, and had no room.
struct RefusedMessage {
  PeerId source;
  Lane lane = Lane::kControl;
  Message header;  // without metadata and rows
  /// INVALID_ARGUMENT: larger than max_message_bytes. RESOURCE_EXHAUSTED: max_messages of them are
  /// arriving already.
  absl::Status reason;
};

/// Room for messages that have been asked for, or may come at any time.
struct ReservationSpec {
  ReservationScope scope = ReservationScope::kMessage;
  PeerId source;  // unused for kKind
  MessageKey key;
  uint64_t max_message_bytes = 0;
  /// The reservation ends after so many; kKind never ends and allows so many unfinished ones.
  uint32_t max_messages = 1;
  absl::Duration deadline = absl::InfiniteDuration();  // on the transport's clock
  /// Once for each message, in its lane's order (kStep and kKind: overlapping for several lanes or
  /// peers), and at most once with a failure, which is the last call: DEADLINE_EXCEEDED, or
  /// UNAVAILABLE when the peer died. Runs on a thread of the link or reactor, and nothing else
  /// arrives there meanwhile: it hands over, or does what is brief (base/brief_work.h), and
  /// never waits for a message. It may call the transport.
  std::function<void(Delivery)> on_delivery;
  /// kKind only; may be null. Lets whoever asked be answered at once instead of at its deadline.
  /// Runs where on_delivery does.
  std::function<void(const RefusedMessage&)> on_refused;
};

using ReservationId = StrongId<struct ReservationIdTag, uint64_t>;

struct ReservationLimits {
  uint64_t max_bytes = uint64_t{1} << 30;  // Σ max_message_bytes · max_messages
  uint32_t max_reservations = 1 << 16;
};

/// Which messages are expected, by whom, and how large they may be. Knows no link and no clock.
/// Thread-safe; deliveries run outside its lock.
///
/// Invariants:
/// 1. Reserved bytes and reservations never pass the limits.
/// 2. A message is delivered to at most one reservation: the narrowest scope that matches.
/// 3. A kStep reservation takes each key once; a kMessage reservation is over with its message.
class ReservationTable {
 public:
  class Claim;

  explicit ReservationTable(const ReservationLimits& limits) : limits_(limits) {}

  /// RESOURCE_EXHAUSTED with both numbers; ALREADY_EXISTS for the same scope and key.
  absl::StatusOr<ReservationId> Add(ReservationSpec spec) MOEBIUS_EXCLUDES(mutex_);
  /// False when it has ended. A delivery that has begun is not waited for.
  bool Cancel(ReservationId id) MOEBIUS_EXCLUDES(mutex_);

  /// The claim of a message that begins to arrive; nothing when no reservation expects it or there
  /// is no room for it, of which the reservation is told. The claim holds one of the reservation's
  /// messages until it is destroyed or delivered.
  std::optional<Claim> Match(PeerId source, Lane lane, const Message& header,
                             uint64_t message_bytes) MOEBIUS_EXCLUDES(mutex_);

  /// Ends all reservations whose source is `peer`, with `reason`.
  void FailPeer(PeerId peer, const absl::Status& reason) MOEBIUS_EXCLUDES(mutex_);
  /// Ends the reservations whose deadline is at or before `now`.
  void Expire(absl::Duration now) MOEBIUS_EXCLUDES(mutex_);
  /// The earliest deadline; infinite when there is none.
  absl::Duration next_deadline() const MOEBIUS_EXCLUDES(mutex_);

  uint64_t reserved_bytes() const MOEBIUS_EXCLUDES(mutex_);
  size_t num_reservations() const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Key {
    ReservationScope scope;
    PeerId source;
    MessageKey key;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Reservation;
  using Entry = std::shared_ptr<Reservation>;
  using Deadline = std::pair<absl::Duration, uint64_t>;

  static Key KeyOf(ReservationScope scope, PeerId source, const MessageKey& key);
  absl::Status CheckRoom(const Reservation& reservation, uint64_t message_bytes) const
      MOEBIUS_REQUIRES(mutex_);
  void Remove(const Entry& entry) MOEBIUS_REQUIRES(mutex_);
  bool Finish(const Entry& entry, const MessageKey& key) MOEBIUS_EXCLUDES(mutex_);
  void Release(const Entry& entry, const MessageKey& key) MOEBIUS_EXCLUDES(mutex_);
  static void Fail(const std::vector<Entry>& ended, const absl::Status& reason);

  const ReservationLimits limits_;
  mutable Mutex mutex_;
  uint64_t next_id_ MOEBIUS_GUARDED_BY(mutex_) = 1;
  uint64_t reserved_bytes_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  SpareMap<Key, Entry> by_key_ MOEBIUS_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Entry> by_id_ MOEBIUS_GUARDED_BY(mutex_);
  SpareSet<Deadline> deadlines_ MOEBIUS_GUARDED_BY(mutex_);
};

/// One arriving message's hold on its reservation. Used by one thread at a time.
class ReservationTable::Claim {
 public:
  Claim(ReservationTable& table, Entry entry, PeerId source, const MessageKey& key)
      : table_(&table), entry_(std::move(entry)), source_(source), key_(key) {}
  ~Claim();
  /// The other one holds nothing afterwards.
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&&) = delete;
  /// Calls the reservation's delivery, unless it has ended meanwhile; true when it was called.
  bool Deliver(Lane lane, Message message);

 private:
  ReservationTable* table_;
  Entry entry_;  // null: moved from
  PeerId source_;
  MessageKey key_;
  bool finished_ = false;
};

}  // namespace moebius
