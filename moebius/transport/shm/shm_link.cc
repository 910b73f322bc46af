// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/transport/shm/bell.h"
#include "moebius/transport/shm/ring.h"
#include "moebius/transport/shm/shared_segment.h"

namespace moebius {
namespace {

// Frames of one link before others have their turn.
constexpr int kFramesPerTurn = 16;
// Whoever sends large frames sends the next one soon: after each the ring is looked at again, once
// for so many of its bytes, before its reader goes to sleep. That is about as long as they took to
// copy, less than a sleep and a waking cost both ends, and other links have their turns in between.
constexpr uint64_t kBytesPerLook = 8 << 10;
// The next one of this size comes later than a waking.
constexpr uint64_t kMinBytesWithoutLook = 256 << 10;
constexpr absl::Duration kConnectPause = absl::Milliseconds(2);

enum Tag : uint32_t { kBell = 0, kSocket = 1 };

// What an end is made of.
struct Parts {
  std::unique_ptr<SharedSegment> segment;
  Bell own_bell;         // rung by the other end
  Bell their_bell;       // rung by this end
  OwnedFd socket;        // of an accepted end; a dialing one connects
  ShmHandover handover;  // of a dialing end, until it has gone
  std::shared_ptr<void> connection;
  std::optional<Address> target;  // of a dialing end
  std::string remote;
};

// One end of a link. The caller's thread writes into the ring; everything else happens on the
// loop's thread. It lives until both the Link and the loop have let go of it.
//
// Invariants:
// 1. The memory and the descriptors go in TearDown, once, on the loop's thread, under write_mutex_:
//    that thread may use them without the lock, others only with it and while !is_over_.
// 2. Sinks are called with a lock held that Detach takes, and never with write_mutex_.
class ShmEnd final : public PollWatcher, public std::enable_shared_from_this<ShmEnd> {
 public:
  ShmEnd(ShmContext& context, Parts parts)
      : context_(context),
        target_(std::move(parts.target)),
        remote_(std::move(parts.remote)),
        parts_(std::move(parts)),
        writer_(parts_.segment->ring(target_.has_value() ? 0 : 1)),
        reader_(parts_.segment->ring(target_.has_value() ? 1 : 0),
                context.options.max_payload_bytes, context.buffers) {
    Increase(context_.num_links);
  }

  // The Link's calls.
  void Attach(LinkSink& sink);
  void Detach();
  bool TryWrite(WireFrame& frame) MOEBIUS_EXCLUDES(write_mutex_);
  void Close() MOEBIUS_EXCLUDES(write_mutex_);
  const std::string& remote() const { return remote_; }

  void OnReady(uint32_t tag, uint32_t events) override;

 private:
  void Connect(absl::Duration deadline);
  absl::Status HandOver(OwnedFd socket);
  void Open();
  void OnBell();
  void OnSocket();
  void Drain();
  bool Deliver(WireFrame frame);
  void TellWritable();
  void RingBell() MOEBIUS_REQUIRES(write_mutex_);
  absl::Status ReasonOfEnd() MOEBIUS_EXCLUDES(write_mutex_);
  void Refuse(const absl::Status& reason);
  void Finish(absl::Status reason);
  bool TearDown() MOEBIUS_EXCLUDES(write_mutex_);
  void FailLater(absl::Status reason) MOEBIUS_REQUIRES(write_mutex_);

  ShmContext& context_;
  const std::optional<Address> target_;
  const std::string remote_;

  Mutex delivery_mutex_;  // held during OnFrame and OnClosed; taken before write_mutex_
  LinkSink* sink_ MOEBIUS_GUARDED_BY(delivery_mutex_) = nullptr;
  Mutex writable_mutex_;  // held during OnWritable; taken before write_mutex_
  LinkSink* writable_sink_ MOEBIUS_GUARDED_BY(writable_mutex_) = nullptr;

  Mutex write_mutex_;
  bool is_over_ MOEBIUS_GUARDED_BY(write_mutex_) = false;  // nothing is written any more
  bool is_closing_ MOEBIUS_GUARDED_BY(write_mutex_) = false;
  std::atomic<bool> was_refused_{false};  // set under write_mutex_

  Parts parts_;        // invariant 1
  RingWriter writer_;  // the same
  // Of the loop's thread.
  RingReader reader_;
  uint64_t looks_left_ = 0;     // at an empty ring, before it sleeps
  bool has_next_turn_ = false;  // has been asked for
  uint64_t bell_id_ = 0;
  uint64_t socket_id_ = 0;
  std::optional<absl::Status> said_;  // what the socket's end has told
  bool is_torn_down_ = false;
};

void ShmEnd::Attach(LinkSink& sink) {
  {
    MutexLock delivery(delivery_mutex_);
    sink_ = &sink;
  }
  {
    MutexLock writable(writable_mutex_);
    writable_sink_ = &sink;
  }
  context_.loop->Post([self = shared_from_this()] {
    if (!self->target_.has_value()) return self->Open();
    PollLoop& loop = *self->context_.loop;
    self->Connect(loop.Now() + self->context_.options.connect_timeout);
  });
}

void ShmEnd::Detach() {
  {
    MutexLock delivery(delivery_mutex_);
    sink_ = nullptr;
  }
  {
    MutexLock writable(writable_mutex_);
    writable_sink_ = nullptr;
  }
  {
    MutexLock lock(write_mutex_);
    // The other end hears of it now, not when the loop has time.
    if (!is_over_ && parts_.socket.fd() >= 0) shutdown(parts_.socket.fd(), SHUT_RDWR);
    is_over_ = true;
  }
  context_.loop->Post([self = shared_from_this()] { self->TearDown(); });
}

bool ShmEnd::TryWrite(WireFrame& frame) {
  const uint64_t payload_bytes = PayloadBytes(frame.payload);
  MutexLock lock(write_mutex_);
  // Nobody reads it any more: OnClosed is on its way.
  bool is_taken = is_over_ || is_closing_;
  if (!is_taken && payload_bytes > context_.options.max_payload_bytes) {
    FailLater(absl::ResourceExhaustedError(absl::StrCat("shared memory: a payload of ",
                                                        payload_bytes, " bytes, the limit is ",
                                                        context_.options.max_payload_bytes)));
    is_taken = true;
  }
  if (!is_taken) {
    const absl::StatusOr<bool> written = writer_.TryWrite(frame);
    if (!written.ok()) {
      FailLater(written.status());
    } else if (!*written) {
      was_refused_.store(true);
      return false;
    } else {
      Increase(context_.frames_sent);
      Increase(context_.copied_bytes, payload_bytes);
      if (writer_.TakeReaderWaits()) RingBell();
    }
  }
  frame = WireFrame();
  return true;
}

void ShmEnd::Close() {
  MutexLock lock(write_mutex_);
  if (is_over_ || std::exchange(is_closing_, true)) return;
  writer_.End();
  if (writer_.TakeReaderWaits()) RingBell();
}

void ShmEnd::RingBell() {
  // Counted first: whoever the bell wakes finds it counted.
  Increase(context_.num_wakes);
  parts_.their_bell.Ring();
}

void ShmEnd::FailLater(absl::Status reason) {
  is_over_ = true;
  context_.loop->Post(
      [self = shared_from_this(), reason = std::move(reason)] { self->Refuse(reason); });
}

void ShmEnd::Connect(absl::Duration deadline) {
  {
    MutexLock lock(write_mutex_);
    if (is_over_) return;
  }
  absl::StatusOr<std::optional<OwnedFd>> socket = ConnectShmSocket(*target_);
  if (!socket.ok()) return Finish(socket.status());
  if (!socket->has_value()) {
    if (context_.loop->Now() >= deadline) {
      return Finish(absl::UnavailableError(
          absl::StrCat(FormatAddress(*target_), " has too many connections waiting")));
    }
    return context_.loop->RunAt(context_.loop->Now() + kConnectPause,
                                [self = shared_from_this(), deadline] { self->Connect(deadline); });
  }
  const absl::Status handed_over = HandOver(**std::move(socket));
  if (!handed_over.ok()) return Finish(handed_over);
  Open();
}

absl::Status ShmEnd::HandOver(OwnedFd socket) {
  MutexLock lock(write_mutex_);
  // The message has descriptors of its own.
  const ShmHandover handover = std::exchange(parts_.handover, ShmHandover());
  parts_.socket = std::move(socket);
  return SendHandover(parts_.socket.fd(), handover);
}

void ShmEnd::Open() {
  if (is_torn_down_) return;
  const absl::StatusOr<uint64_t> bell =
      context_.loop->Watch(parts_.own_bell.fd(), EPOLLIN, shared_from_this(), kBell);
  if (!bell.ok()) return Finish(bell.status());
  bell_id_ = *bell;
  const absl::StatusOr<uint64_t> socket =
      context_.loop->Watch(parts_.socket.fd(), EPOLLIN | EPOLLRDHUP, shared_from_this(), kSocket);
  if (!socket.ok()) return Finish(socket.status());
  socket_id_ = *socket;
  Drain();
}

void ShmEnd::OnReady(uint32_t tag, uint32_t events) {
  if (events == 0) has_next_turn_ = false;
  if (is_torn_down_) return;
  if (tag == kBell) {
    OnBell();
  } else {
    OnSocket();
  }
}

void ShmEnd::OnBell() {
  if (was_refused_.load()) TellWritable();
  Drain();
}

void ShmEnd::TellWritable() {
  {
    MutexLock lock(write_mutex_);
    if (is_over_ || !writer_.IsReleased()) return;
    was_refused_.store(false);
  }
  MutexLock writable(writable_mutex_);
  if (writable_sink_ != nullptr) writable_sink_->OnWritable();
}

void ShmEnd::OnSocket() {
  if (said_.has_value()) return;
  said_ = ReceiveEnd(parts_.socket.fd());
  if (!said_.has_value()) return;
  // What has been written is still delivered; nothing that is written from now on.
  reader_.Freeze();
  Drain();
}

void ShmEnd::Drain() {
  for (int i = 0; i < kFramesPerTurn; ++i) {
    // Asked for before the ring is found empty: nothing can come between.
    const bool has_ended = reader_.HasEnded();
    absl::StatusOr<std::optional<WireFrame>> frame = reader_.Read();
    if (!frame.ok()) return Refuse(frame.status());
    if (!frame->has_value()) {
      if (has_ended) return Finish(absl::OkStatus());
      if (said_.has_value()) return Finish(ReasonOfEnd());
      if (looks_left_ > 0) {
        --looks_left_;
        break;
      }
      if (reader_.Sleep()) return;
      continue;
    }
    const uint64_t payload_bytes = PayloadBytes((*frame)->payload);
    looks_left_ = payload_bytes < kMinBytesWithoutLook ? payload_bytes / kBytesPerLook : 0;
    if (reader_.TakeWriterWaits()) {
      MutexLock lock(write_mutex_);
      RingBell();
    }
    if (!Deliver(**std::move(frame))) return;
  }
  if (!std::exchange(has_next_turn_, true)) context_.loop->Again(shared_from_this(), kBell);
}

bool ShmEnd::Deliver(WireFrame frame) {
  Increase(context_.frames_received);
  Increase(context_.copied_bytes, PayloadBytes(frame.payload));
  MutexLock delivery(delivery_mutex_);
  // Detached: it is about to be torn down.
  if (sink_ == nullptr) return false;
  sink_->OnFrame(std::move(frame));
  return true;
}

absl::Status ShmEnd::ReasonOfEnd() {
  if (!said_->ok()) return *said_;
  MutexLock lock(write_mutex_);
  if (is_closing_ && writer_.IsDrained()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(remote_, " has gone, or its end of the link"));
}

void ShmEnd::Refuse(const absl::Status& reason) {
  if (is_torn_down_) return;
  if (parts_.socket.fd() >= 0) SendRefusal(parts_.socket.fd(), reason);
  Finish(reason);
}

void ShmEnd::Finish(absl::Status reason) {
  if (!TearDown()) return;
  MutexLock delivery(delivery_mutex_);
  if (sink_ != nullptr) std::exchange(sink_, nullptr)->OnClosed(std::move(reason));
}

bool ShmEnd::TearDown() {
  if (std::exchange(is_torn_down_, true)) return false;
  if (bell_id_ != 0) context_.loop->Forget(bell_id_, parts_.own_bell.fd());
  if (socket_id_ != 0) context_.loop->Forget(socket_id_, parts_.socket.fd());
  MutexLock lock(write_mutex_);
  is_over_ = true;
  parts_ = Parts();
  if (context_.num_links.fetch_sub(1) == 1) context_.buffers.Clear();
  return true;
}

class ShmLink final : public Link {
 public:
  explicit ShmLink(std::shared_ptr<ShmEnd> end) : end_(std::move(end)) {}
  ~ShmLink() override { end_->Detach(); }
  void Start(LinkSink& sink) override { end_->Attach(sink); }
  bool TryWrite(WireFrame& frame) override { return end_->TryWrite(frame); }
  void Close() override { end_->Close(); }
  LinkFacts facts() const override { return {end_->remote(), "", true}; }

 private:
  const std::shared_ptr<ShmEnd> end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> MakeDialedShmLink(ShmContext& context,
                                                        const Address& address) {
  Parts parts;
  MOEBIUS_ASSIGN_OR_RETURN(SharedSegment::Created created,
                           SharedSegment::Create(context.ring_bytes));
  MOEBIUS_ASSIGN_OR_RETURN(Bell::Made own_bell, Bell::Make());
  MOEBIUS_ASSIGN_OR_RETURN(Bell::Made their_bell, Bell::Make());
  parts.segment = std::move(created.segment);
  parts.own_bell = std::move(own_bell.bell);
  parts.their_bell = std::move(their_bell.bell);
  parts.handover.ring_bytes = context.ring_bytes;
  parts.handover.memory = std::move(created.memory);
  parts.handover.dialer_bell = std::move(own_bell.for_other_end);
  parts.handover.listener_bell = std::move(their_bell.for_other_end);
  parts.target = address;
  parts.remote = FormatAddress(address);
  return std::unique_ptr<Link>(new ShmLink(std::make_shared<ShmEnd>(context, std::move(parts))));
}

absl::StatusOr<std::unique_ptr<Link>> MakeAcceptedShmLink(ShmContext& context,
                                                          ShmAccepted& accepted) {
  Parts parts;
  ShmHandover& handover = accepted.handover;
  MOEBIUS_ASSIGN_OR_RETURN(parts.segment, SharedSegment::Map(handover.memory, handover.ring_bytes));
  MOEBIUS_ASSIGN_OR_RETURN(parts.own_bell, Bell::Open(handover.listener_bell));
  MOEBIUS_ASSIGN_OR_RETURN(parts.their_bell, Bell::Open(handover.dialer_bell));
  parts.socket = std::move(accepted.socket);
  parts.connection = std::move(accepted.connection);
  parts.remote = absl::StrCat("pid ", accepted.peer.pid, " of this host");
  return std::unique_ptr<Link>(new ShmLink(std::make_shared<ShmEnd>(context, std::move(parts))));
}

}  // namespace moebius
