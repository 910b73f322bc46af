// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/link_end.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {

LinkEnd::LinkEnd(const LinkEndOptions& options, std::unique_ptr<Link> link,
                 const LinkEndContext& context)
    : options_(options),
      clock_(context.clock),
      owner_(context.owner),
      table_(context.table),
      buffers_(context.buffers),
      counters_(context.counters),
      lane_(options.lane),
      limits_(options.limits),
      link_(std::move(link)) {
  last_heard_ns_.store(absl::ToInt64Nanoseconds(clock_.Now()));
}

// The link goes first, as the last member, and with it all calls of this sink.
LinkEnd::~LinkEnd() { ended_.store(true); }

void LinkEnd::Start(PeerId peer, const Hello& hello) {
  {
    MutexLock receive_lock(receive_mutex_);
    peer_ = peer;
  }
  if (options_.dialed) {
    MutexLock lock(mutex_);
    queue_.emplace(lane(), options_.max_queued_bytes, counters_[LaneIndex(lane())]);
    queue_->PushHello(hello, options_.incarnation);
  }
  link_->Start(*this);
  if (options_.dialed) Pump();
}

void LinkEnd::Answer(PeerId peer, const Hello& hello) {
  MOEBIUS_CHECK(!options_.dialed);
  {
    MutexLock receive_lock(receive_mutex_);
    {
      MutexLock lock(mutex_);
      queue_.emplace(lane(), options_.max_queued_bytes, counters_[LaneIndex(lane())]);
      queue_->PushHello(hello, options_.incarnation);
    }
    Open(peer);
  }
  Pump();
}

void LinkEnd::Admit() {
  MutexLock receive_lock(receive_mutex_);
  if (ended_.load() || left_.load()) return;
  is_admitted_ = true;
  for (Frame& frame : std::exchange(early_, {})) {
    assembly_->Add(frame.header, std::move(frame.payload));
  }
  assembling_bytes_.store(assembly_->held_bytes());
  MaybeCredit();
}

void LinkEnd::Open(PeerId peer) {
  peer_ = peer;
  assembly_.emplace(table_, buffers_, peer, lane(), counters_[LaneIndex(lane())]);
  SendTerms terms;
  terms.incarnation = options_.incarnation;
  terms.window_bytes = theirs_->window_bytes;
  terms.max_payload_bytes =
      std::min<uint64_t>(theirs_->max_payload_bytes, options_.limits.max_payload_bytes);
  terms.checksums = checksums_;
  MutexLock lock(mutex_);
  their_max_message_bytes_ = theirs_->max_message_bytes;
  queue_->Open(terms);
}

absl::Status LinkEnd::Send(SendId id, Message message, absl::Duration deadline, SendDone done) {
  MOEBIUS_RETURN_IF_ERROR(ValidateMessage(message, options_.limits));
  std::vector<SendQueue::Finished> finished;
  {
    MutexLock lock(mutex_);
    if (ended_.load() || left_.load() || !queue_.has_value()) {
      return absl::UnavailableError("the connection has ended");
    }
    if (their_max_message_bytes_ > 0 && MessageBytes(message) > their_max_message_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("a message of ", MessageBytes(message),
                                                       " bytes, the peer takes ",
                                                       their_max_message_bytes_));
    }
    MOEBIUS_RETURN_IF_ERROR(
        queue_->Push(id, std::move(message), deadline, clock_.Now(), std::move(done)));
    PumpLocked(&finished);
  }
  if (!finished.empty()) owner_.OnFinished(std::move(finished));
  return absl::OkStatus();
}

bool LinkEnd::CancelSend(SendId id) {
  MutexLock lock(mutex_);
  return queue_.has_value() && queue_->Cancel(id);
}

absl::Duration LinkEnd::ExpireSends(absl::Duration now) {
  std::vector<SendQueue::Finished> finished;
  absl::Duration next = absl::InfiniteDuration();
  {
    MutexLock lock(mutex_);
    if (!queue_.has_value()) return next;
    queue_->Expire(now, &finished);
    next = queue_->next_deadline();
  }
  if (!finished.empty()) owner_.OnFinished(std::move(finished));
  return next;
}

void LinkEnd::SendBeat() {
  {
    MutexLock lock(mutex_);
    if (queue_.has_value()) queue_->PushBeat();
  }
  Pump();
}

void LinkEnd::Leave(const absl::Status& reason) {
  left_.store(true);
  {
    MutexLock lock(mutex_);
    if (!queue_.has_value()) {
      queue_.emplace(lane(), options_.max_queued_bytes, counters_[LaneIndex(lane())]);
      queue_->Open({options_.incarnation, 2 * kFrameHeaderBytes, 0, true});
    }
    queue_->PushGoodbye(reason);
  }
  Pump();
}

void LinkEnd::FailSends(const absl::Status& reason) {
  std::vector<SendQueue::Finished> finished;
  {
    MutexLock lock(mutex_);
    if (queue_.has_value()) queue_->Fail(reason, &finished);
    refused_.reset();
  }
  if (!finished.empty()) owner_.OnFinished(std::move(finished));
}

void LinkEnd::Silence() {
  ended_.store(true);
  MutexLock lock(receive_mutex_);
  assembly_.reset();
  early_.clear();
}

void LinkEnd::Pump() {
  std::vector<SendQueue::Finished> finished;
  {
    MutexLock lock(mutex_);
    PumpLocked(&finished);
  }
  if (!finished.empty()) owner_.OnFinished(std::move(finished));
}

void LinkEnd::PumpLocked(std::vector<SendQueue::Finished>* finished) {
  if (!queue_.has_value() || ended_.load() || closed_) return;
  while (true) {
    if (!refused_.has_value()) refused_ = queue_->Next(clock_.Now(), finished);
    if (!refused_.has_value()) break;
    if (!link_->TryWrite(*refused_)) return;
    refused_.reset();
  }
  if (left_.load()) {
    closed_ = true;
    link_->Close();
  }
}

void LinkEnd::OnFrame(WireFrame frame) {
  absl::Status status;
  bool is_bad_hello = false;
  {
    MutexLock lock(receive_mutex_);
    if (ended_.load() || left_.load() || is_bad_hello_) return;
    status = Receive(std::move(frame));
    if (assembly_.has_value()) assembling_bytes_.store(assembly_->held_bytes());
    is_bad_hello = is_bad_hello_ = !status.ok() && !options_.dialed && peer_incarnation_ == 0;
  }
  if (status.ok()) return;
  if (is_bad_hello) return owner_.OnBadHello(*this, status);
  End(status);
}

absl::Status LinkEnd::Receive(WireFrame frame) {
  const bool first = peer_incarnation_ == 0;
  if (first && link_->facts().same_host && !options_.checksums_inside_host) {
    limits_.require_checksum = false;
    checksums_ = false;
  }
  MOEBIUS_ASSIGN_OR_RETURN(const FrameHeader header,
                           DecodeFrameHeader(absl::MakeConstSpan(frame.header), limits_));
  MOEBIUS_RETURN_IF_ERROR(VerifyPayload(header, frame.payload));
  last_heard_ns_.store(absl::ToInt64Nanoseconds(clock_.Now()));
  return first ? ReceiveFirst(header, frame.payload)
               : ReceiveNext(header, std::move(frame.payload));
}

absl::Status LinkEnd::ReceiveFirst(const FrameHeader& header, const Payload& payload) {
  if (header.kind == kGoodbyeKind && options_.dialed) return ParseGoodbye(header, payload);
  MOEBIUS_ASSIGN_OR_RETURN(Hello hello, ParseHello(header, payload));
  if (header.sequence != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: it has sequence ", header.sequence, ", not 0"));
  }
  if (options_.dialed && hello.lane != lane()) {
    return absl::InvalidArgumentError(absl::StrCat("hello: it answers for the ",
                                                   LaneName(hello.lane), " lane on the ",
                                                   LaneName(lane()), " lane"));
  }
  lane_.store(hello.lane);
  peer_incarnation_ = header.incarnation;
  expected_sequence_ = 1;
  counters_[LaneIndex(lane())].OnReceived(header.kind, header.payload_bytes);
  theirs_ = hello;
  if (options_.dialed) Open(peer_);
  owner_.OnHello(*this, hello, header.incarnation);
  return absl::OkStatus();
}

absl::Status LinkEnd::ReceiveNext(const FrameHeader& header, Payload payload) {
  if (header.incarnation != peer_incarnation_) {
    return absl::InvalidArgumentError("frame: it is of another incarnation than the hello");
  }
  if (!assembly_.has_value()) {
    return absl::InvalidArgumentError("frame: it came before the answer to the hello");
  }
  LaneCounters& counters = counters_[LaneIndex(lane())];
  if (header.sequence < expected_sequence_) {
    counters.OnDropped(DropReason::kDuplicate);
    return absl::OkStatus();
  }
  if (header.sequence > expected_sequence_) {
    return absl::DataLossError(absl::StrCat("the ", LaneName(lane()), " lane lost frames ",
                                            expected_sequence_, " to ", header.sequence - 1));
  }
  ++expected_sequence_;
  counters.OnReceived(header.kind, header.payload_bytes);
  if (IsMessageKind(header.kind)) return ReceiveMessage(header, std::move(payload));
  if (header.kind == kGoodbyeKind) return ParseGoodbye(header, payload);
  if (header.kind == kBeatKind) {
    if (uncredited_bytes_ > 0 && is_admitted_) SendCredit();
    return absl::OkStatus();
  }
  if (header.kind == kCreditKind) {
    MOEBIUS_ASSIGN_OR_RETURN(const uint64_t consumed, ParseCredit(header, payload));
    {
      MutexLock lock(mutex_);
      MOEBIUS_RETURN_IF_ERROR(queue_->OnCredit(consumed, clock_.Now()));
    }
    Pump();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("frame: a second hello");
}

absl::Status LinkEnd::ReceiveMessage(const FrameHeader& header, Payload payload) {
  const uint64_t window = options_.window_bytes[LaneIndex(lane())];
  const uint64_t cost = WindowCost(header.payload_bytes);
  if (cost > window - uncredited_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer overran the window of ", window,
                                                     " bytes of the ", LaneName(lane()), " lane"));
  }
  uncredited_bytes_ += cost;
  if (!is_admitted_) {
    early_.push_back({header, std::move(payload)});
    return absl::OkStatus();
  }
  assembly_->Add(header, std::move(payload));
  counters_[LaneIndex(lane())].OnStage(TransportStage::kDelivered,
                                       clock_.Now() - absl::Nanoseconds(last_heard_ns_.load()));
  MaybeCredit();
  return absl::OkStatus();
}

// A frame costs at most half the window and less than a quarter is kept back, so a sender always
// gets going again.
void LinkEnd::MaybeCredit() {
  if (uncredited_bytes_ >= options_.window_bytes[LaneIndex(lane())] / 4) SendCredit();
}

void LinkEnd::SendCredit() {
  uncredited_bytes_ = 0;
  {
    MutexLock lock(mutex_);
    queue_->PushCredit(expected_sequence_);
  }
  Pump();
}

void LinkEnd::OnWritable() { Pump(); }

void LinkEnd::OnClosed(absl::Status reason) {
  End(reason.ok() ? absl::UnavailableError("the peer closed the connection") : reason);
}

void LinkEnd::End(const absl::Status& reason) {
  if (!ended_.exchange(true)) owner_.OnEnded(*this, reason);
}

bool LinkEnd::HasUncredited() const {
  MutexLock lock(mutex_);
  return queue_.has_value() && queue_->HasUncredited();
}

uint64_t LinkEnd::consumed() const {
  MutexLock lock(mutex_);
  return queue_.has_value() ? queue_->consumed() : 0;
}

uint64_t LinkEnd::queued_bytes() const {
  MutexLock lock(mutex_);
  return queue_.has_value() ? queue_->queued_bytes() : 0;
}

uint64_t LinkEnd::in_flight_bytes() const {
  MutexLock lock(mutex_);
  return queue_.has_value() ? queue_->in_flight_bytes() : 0;
}

}  // namespace moebius
