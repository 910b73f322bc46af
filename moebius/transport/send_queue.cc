// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/send_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/transport/hello.h"

namespace moebius {

std::string SendQueue::Describe() const {
  return absl::StrCat("the ", LaneName(lane_), " lane has ", queued_bytes_, " of ",
                      max_queued_bytes_, " bytes queued and ", in_flight_bytes_, " of ",
                      terms_.window_bytes, " bytes that the peer has not consumed");
}

absl::Status SendQueue::Push(SendId id, Message message, absl::Duration deadline,
                             absl::Duration now, SendDone done) {
  Pending pending;
  pending.bytes = MessageBytes(message) + kFrameHeaderBytes;
  if (queued_bytes_ > 0 && queued_bytes_ + pending.bytes > max_queued_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", pending.bytes, " bytes waits for nobody: ", Describe()));
  }
  queued_bytes_ += pending.bytes;
  pending.id = id;
  pending.message = std::move(message);
  pending.deadline = deadline;
  pending.pushed_at = now;
  pending.done = std::move(done);
  pending_.push_back(std::move(pending));
  return absl::OkStatus();
}

bool SendQueue::Cancel(SendId id) {
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [id](const Pending& pending) { return pending.id == id; });
  if (found == pending_.end()) return false;
  queued_bytes_ -= found->bytes;
  pending_.erase(found);
  return true;
}

void SendQueue::Expire(absl::Duration now, std::vector<Finished>* finished) {
  for (size_t i = 0; i < pending_.size();) {
    Pending& pending = pending_[i];
    if (pending.deadline > now) {
      ++i;
      continue;
    }
    finished->push_back(
        {std::move(pending.done),
         absl::DeadlineExceededError(absl::StrCat("part ", pending.next_part, " of a message of ",
                                                  pending.bytes, " bytes waited: ", Describe()))});
    queued_bytes_ -= pending.bytes;
    pending_.erase(pending_.begin() + static_cast<int64_t>(i));
  }
}

void SendQueue::Fail(const absl::Status& reason, std::vector<Finished>* finished) {
  for (Pending& pending : pending_) finished->push_back({std::move(pending.done), reason});
  pending_.clear();
  queued_bytes_ = 0;
}

absl::Duration SendQueue::next_deadline() const {
  absl::Duration earliest = absl::InfiniteDuration();
  for (const Pending& pending : pending_) earliest = std::min(earliest, pending.deadline);
  return earliest;
}

void SendQueue::PushHello(const Hello& hello, uint64_t incarnation) {
  terms_.incarnation = incarnation;
  hello_ = BuildHello(hello);
}

void SendQueue::Open(const SendTerms& terms) {
  MOEBIUS_CHECK_GE(terms.window_bytes / 2, WindowCost(terms.max_payload_bytes));
  terms_ = terms;
  open_ = true;
}

absl::Status SendQueue::OnCredit(uint64_t consumed, absl::Duration now) {
  if (consumed > next_sequence_) {
    return absl::InvalidArgumentError(
        absl::StrCat("credit for ", consumed, " frames, ", next_sequence_, " were sent"));
  }
  if (asking_.has_value() && consumed > asking_->sequence) {
    if (HasUncreditedBefore(asking_->sequence)) counters_.OnRoundTrip(now - asking_->sent_at);
    asking_.reset();
  }
  consumed_ = std::max(consumed_, consumed);
  while (!in_flight_.empty() && in_flight_.front().first < consumed) {
    in_flight_bytes_ -= in_flight_.front().second;
    in_flight_.pop_front();
  }
  // It was on its way when the beat left: the beat has nothing to ask for, and no answer.
  if (asking_.has_value() && !HasUncreditedBefore(asking_->sequence)) asking_.reset();
  return absl::OkStatus();
}

WireFrame SendQueue::Seal(Frame frame) {
  frame.header.incarnation = terms_.incarnation;
  frame.header.sequence = next_sequence_++;
  // Before Open the other end's demands are unknown: hello and goodbye always carry a checksum.
  if (terms_.checksums) {
    frame.header.has_checksum = true;
    frame.header.checksum = FrameChecksum(frame.header, HashPayload(frame.payload));
  }
  return WireFrame{EncodeFrameHeader(frame.header), std::move(frame.payload)};
}

std::optional<Frame> SendQueue::NextOwnFrame() {
  if (hello_.has_value()) return *std::exchange(hello_, std::nullopt);
  if (goodbye_.has_value()) return BuildGoodbye(*std::exchange(goodbye_, std::nullopt));
  if (credit_due_.has_value()) return BuildCredit(*std::exchange(credit_due_, std::nullopt));
  if (std::exchange(beat_due_, false)) return BuildBeat();
  return std::nullopt;
}

std::optional<WireFrame> SendQueue::Next(absl::Duration now, std::vector<Finished>* finished) {
  if (std::optional<Frame> own = NextOwnFrame(); own.has_value()) {
    counters_.OnSent(own->header.kind, own->header.payload_bytes, false);
    if (own->header.kind == kBeatKind && !asking_.has_value() && HasUncredited()) {
      asking_ = AskingBeat{next_sequence_, now};
    }
    return Seal(*std::move(own));
  }
  if (!open_ || pending_.empty()) return std::nullopt;
  Pending& pending = pending_.front();
  if (pending.parts == 0) {
    pending.parts = NumParts(MessageBytes(pending.message), terms_.max_payload_bytes);
  }
  Frame frame = BuildFrame(pending.message, pending.next_part, pending.parts);
  const uint64_t cost = WindowCost(frame.header.payload_bytes);
  if (in_flight_bytes_ + cost > terms_.window_bytes) return std::nullopt;
  in_flight_.emplace_back(next_sequence_, cost);
  in_flight_bytes_ += cost;
  const bool ends_message = ++pending.next_part == pending.parts;
  counters_.OnSent(frame.header.kind, frame.header.payload_bytes, ends_message);
  if (ends_message) {
    queued_bytes_ -= pending.bytes;
    counters_.OnStage(TransportStage::kQueued, now - pending.pushed_at);
    if (pending.done != nullptr) finished->push_back({std::move(pending.done), absl::OkStatus()});
    pending_.pop_front();
  }
  return Seal(std::move(frame));
}

}  // namespace moebius
