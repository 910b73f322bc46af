// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/base/spare_memory.h"
#include "moebius/base/strong_id.h"
#include "moebius/transport/counters.h"
#include "moebius/transport/frame/message.h"
#include "moebius/transport/hello.h"
#include "moebius/transport/lane.h"
#include "moebius/transport/link.h"

namespace moebius {

using SendId = StrongId<struct SendIdTag, uint64_t>;
/// OK when the last part has been given to the link; else why it will never be.
using SendDone = std::function<void(const absl::Status&)>;

/// What a sender's end of a link knows after both hellos.
struct SendTerms {
  uint64_t incarnation = 0;        // of this process
  uint64_t window_bytes = 0;       // the other end's window
  uint64_t max_payload_bytes = 0;  // the smaller of both ends'
  bool checksums = true;
};

/// The outgoing half of one lane: queues messages, cuts them into frames, numbers and seals these,
/// and gives out no more than the other end's window holds. Pure of threads, clocks and links.
///
/// Invariants:
/// 1. Sequences of the frames given out rise by one.
/// 2. Σ WindowCost of message frames given out and not covered by a credit <= window.
/// 3. Queued bytes <= max_queued_bytes, save for a single message into an empty queue.
/// 4. Own frames (hello, credit, beat, goodbye) go before messages and need no window; at most one
///    of each waits.
///
/// Not thread-safe.
class SendQueue {
 public:
  SendQueue(Lane lane, uint64_t max_queued_bytes, LaneCounters& counters)
      : lane_(lane), max_queued_bytes_(max_queued_bytes), counters_(counters) {}

  struct Finished {
    SendDone done;
    absl::Status status;
  };

  /// The message must be valid for the other end's limits. RESOURCE_EXHAUSTED with the reason why
  /// the queue does not move. `now` is when it begins to wait.
  absl::Status Push(SendId id, Message message, absl::Duration deadline, absl::Duration now,
                    SendDone done);
  /// Removes a message, or what is left of it. False when it is not here any more.
  bool Cancel(SendId id);
  /// Removes the messages whose deadline is at or before `now`.
  void Expire(absl::Duration now, std::vector<Finished>* finished);
  /// Removes all messages.
  void Fail(const absl::Status& reason, std::vector<Finished>* finished);
  absl::Duration next_deadline() const;

  void PushHello(const Hello& hello, uint64_t incarnation);
  void PushBeat() { beat_due_ = open_; }
  void PushCredit(uint64_t consumed) { credit_due_ = consumed; }
  void PushGoodbye(const absl::Status& reason) { goodbye_ = reason; }

  /// Messages may leave from now on.
  void Open(const SendTerms& terms);
  /// INVALID_ARGUMENT when it covers frames that were never sent. A beat that is answered by it
  /// counts as a round trip.
  absl::Status OnCredit(uint64_t consumed, absl::Duration now);

  /// The next frame that may leave now, or nothing. The wait of a message whose last part it is
  /// counts.
  std::optional<WireFrame> Next(absl::Duration now, std::vector<Finished>* finished);

  bool HasUncredited() const { return !in_flight_.empty(); }
  /// How many frames the other end has said that it consumed.
  uint64_t consumed() const { return consumed_; }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  uint64_t queued_bytes() const { return queued_bytes_; }
  uint64_t next_sequence() const { return next_sequence_; }

 private:
  struct Pending {
    SendId id;
    Message message;
    uint64_t bytes = 0;
    uint32_t parts = 0;  // 0 until the first part leaves
    uint32_t next_part = 0;
    absl::Duration deadline;
    absl::Duration pushed_at;
    SendDone done;
  };

  bool HasUncreditedBefore(uint64_t sequence) const {
    return !in_flight_.empty() && in_flight_.front().first < sequence;
  }
  WireFrame Seal(Frame frame);
  std::optional<Frame> NextOwnFrame();
  std::string Describe() const;

  const Lane lane_;
  const uint64_t max_queued_bytes_;
  LaneCounters& counters_;
  SendTerms terms_;
  bool open_ = false;
  std::optional<Frame> hello_;
  std::optional<uint64_t> credit_due_;
  bool beat_due_ = false;
  std::optional<absl::Status> goodbye_;
  SpareDeque<Pending> pending_;
  uint64_t queued_bytes_ = 0;
  // (sequence, window cost) of the message frames that no credit covers.
  SpareDeque<std::pair<uint64_t, uint64_t>> in_flight_;
  uint64_t in_flight_bytes_ = 0;
  uint64_t consumed_ = 0;
  uint64_t next_sequence_ = 0;
  // A beat that left behind message frames that no credit covered: the other end answers it at once
  // with a credit, unless it had given one for all of them already.
  struct AskingBeat {
    uint64_t sequence = 0;
    absl::Duration sent_at;
  };
  std::optional<AskingBeat> asking_;
};

}  // namespace moebius
