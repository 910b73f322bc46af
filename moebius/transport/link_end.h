// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/frame/buffer_pool.h"
#include "moebius/transport/frame/frame_header.h"
#include "moebius/transport/hello.h"
#include "moebius/transport/link.h"
#include "moebius/transport/message_assembly.h"
#include "moebius/transport/send_queue.h"

namespace moebius {

class LinkEnd;

/// What a LinkEnd asks of the transport that it belongs to. Calls come from the link's threads;
/// they post to the reactor and return.
class LinkEndOwner {
 public:
  virtual ~LinkEndOwner() = default;
  /// The other end's hello; once. Frames that follow wait for nobody: at the accepting end none
  /// come before the answer, at the dialing end the lane is open already.
  virtual void OnHello(LinkEnd& end, const Hello& hello, uint64_t incarnation) = 0;
  /// At the accepting end: the first frame was no hello that this process understands, another wire
  /// version among others; once, and nothing more is received. The owner says why and ends the
  /// link.
  virtual void OnBadHello(LinkEnd& end, const absl::Status& reason) = 0;
  /// The link is of no use any more; once, the last call.
  virtual void OnEnded(LinkEnd& end, const absl::Status& reason) = 0;
  /// Completed sends, to be reported from the reactor.
  virtual void OnFinished(std::vector<SendQueue::Finished> finished) = 0;
};

struct LinkEndOptions {
  Lane lane = Lane::kControl;  // of a dialed link; an accepted one learns it from the hello
  bool dialed = false;
  FrameLimits limits;
  uint64_t incarnation = 0;  // of this process
  std::array<uint64_t, kNumLanes> window_bytes = {};
  uint64_t max_queued_bytes = 0;
  bool checksums_inside_host = false;
};

/// What all ends of a transport share; it outlives them.
struct LinkEndContext {
  const Clock& clock;
  LinkEndOwner& owner;
  ReservationTable& table;
  BufferPool& buffers;
  std::array<LaneCounters, kNumLanes>& counters;
};

/// One end of one link: speaks the rules of docs/wire_format.md over it.
///
/// Thread-safe. Receiving happens on the link's thread, sending on the caller's.
class LinkEnd final : public LinkSink, public std::enable_shared_from_this<LinkEnd> {
 public:
  LinkEnd(const LinkEndOptions& options, std::unique_ptr<Link> link, const LinkEndContext& context);
  /// Ends the link. Not from inside a call of the owner.
  ~LinkEnd() override;

  /// Begins to receive. A dialed end says `hello` first.
  void Start(PeerId peer, const Hello& hello);
  /// Accepting end, once the hello has been judged: answers, and opens the lane.
  void Answer(PeerId peer, const Hello& hello);
  /// The watcher knows the peer: delivers what came meanwhile, and from now on what comes.
  void Admit() MOEBIUS_EXCLUDES(receive_mutex_);

  /// See Transport::Send; `deadline` on the clock.
  absl::Status Send(SendId id, Message message, absl::Duration deadline, SendDone done);
  bool CancelSend(SendId id);
  /// Fails what has waited too long; returns the next deadline.
  absl::Duration ExpireSends(absl::Duration now);
  void SendBeat();
  /// Sends goodbye and ends the link in order.
  void Leave(const absl::Status& reason);
  /// Nothing is delivered after this has returned, and OnEnded does not come any more. Not from
  /// inside a call of the owner or a delivery of this end.
  void Silence() MOEBIUS_EXCLUDES(receive_mutex_);
  /// Fails everything queued.
  void FailSends(const absl::Status& reason);

  void OnFrame(WireFrame frame) override;
  void OnWritable() override;
  void OnClosed(absl::Status reason) override;

  Lane lane() const { return lane_.load(); }
  bool dialed() const { return options_.dialed; }
  LinkFacts facts() const { return link_->facts(); }
  /// When the last frame arrived, on the clock.
  absl::Duration last_heard() const { return absl::Nanoseconds(last_heard_ns_.load()); }
  bool HasUncredited() const MOEBIUS_EXCLUDES(mutex_);
  /// How many frames the peer has said that it consumed.
  uint64_t consumed() const MOEBIUS_EXCLUDES(mutex_);
  uint64_t queued_bytes() const MOEBIUS_EXCLUDES(mutex_);
  uint64_t in_flight_bytes() const MOEBIUS_EXCLUDES(mutex_);
  uint64_t assembling_bytes() const { return assembling_bytes_.load(); }

 private:
  absl::Status Receive(WireFrame frame) MOEBIUS_REQUIRES(receive_mutex_);
  absl::Status ReceiveFirst(const FrameHeader& header, const Payload& payload)
      MOEBIUS_REQUIRES(receive_mutex_);
  absl::Status ReceiveNext(const FrameHeader& header, Payload payload)
      MOEBIUS_REQUIRES(receive_mutex_);
  absl::Status ReceiveMessage(const FrameHeader& header, Payload payload)
      MOEBIUS_REQUIRES(receive_mutex_);
  void Open(PeerId peer) MOEBIUS_REQUIRES(receive_mutex_) MOEBIUS_EXCLUDES(mutex_);
  void MaybeCredit() MOEBIUS_REQUIRES(receive_mutex_) MOEBIUS_EXCLUDES(mutex_);
  void SendCredit() MOEBIUS_REQUIRES(receive_mutex_) MOEBIUS_EXCLUDES(mutex_);
  void Pump() MOEBIUS_EXCLUDES(mutex_);
  void PumpLocked(std::vector<SendQueue::Finished>* finished) MOEBIUS_REQUIRES(mutex_);
  void End(const absl::Status& reason);

  const LinkEndOptions options_;
  const Clock& clock_;
  LinkEndOwner& owner_;
  ReservationTable& table_;
  BufferPool& buffers_;
  std::array<LaneCounters, kNumLanes>& counters_;

  std::atomic<Lane> lane_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> left_{false};
  std::atomic<int64_t> last_heard_ns_{0};
  std::atomic<uint64_t> assembling_bytes_{0};

  // Held while a frame is received and delivered; calls of a link never overlap, so nobody waits
  // for it but Answer, Admit and Silence.
  Mutex receive_mutex_;
  PeerId peer_ MOEBIUS_GUARDED_BY(receive_mutex_);
  FrameLimits limits_ MOEBIUS_GUARDED_BY(receive_mutex_);  // laxer where one host is proved
  bool checksums_ MOEBIUS_GUARDED_BY(receive_mutex_) = true;
  uint64_t peer_incarnation_ MOEBIUS_GUARDED_BY(receive_mutex_) = 0;
  uint64_t expected_sequence_ MOEBIUS_GUARDED_BY(receive_mutex_) = 0;
  uint64_t uncredited_bytes_ MOEBIUS_GUARDED_BY(receive_mutex_) = 0;
  std::optional<Hello> theirs_ MOEBIUS_GUARDED_BY(receive_mutex_);
  std::optional<MessageAssembly> assembly_ MOEBIUS_GUARDED_BY(receive_mutex_);  // once open
  bool is_bad_hello_ MOEBIUS_GUARDED_BY(receive_mutex_) = false;
  bool is_admitted_ MOEBIUS_GUARDED_BY(receive_mutex_) = false;
  // Of messages, before Admit: at most a window, as no credit is given for them.
  std::vector<Frame> early_ MOEBIUS_GUARDED_BY(receive_mutex_);

  mutable Mutex mutex_;  // taken after receive_mutex_
  std::optional<SendQueue> queue_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t their_max_message_bytes_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::optional<WireFrame> refused_ MOEBIUS_GUARDED_BY(mutex_);  // by the link; goes first
  bool closed_ MOEBIUS_GUARDED_BY(mutex_) = false;

  std::unique_ptr<Link> link_;  // last: its destructor ends the calls that use the above
};

}  // namespace moebius
