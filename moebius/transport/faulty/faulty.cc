// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/faulty/faulty.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "moebius/base/mutex.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr uint64_t kDefaultQueueBytes = uint64_t{1} << 20;
// How often a stopped direction looks whether it may go on.
constexpr absl::Duration kStopPoll = absl::Milliseconds(10);

uint64_t FrameBytes(const WireFrame& frame) {
  return kFrameHeaderBytes + PayloadBytes(frame.payload);
}

// The frames of one direction that the inner link has not seen yet. Outlives the link by what the
// reactor still holds.
class HeldFrames : public std::enable_shared_from_this<HeldFrames> {
 public:
  HeldFrames(Link& inner, const FaultPlan& plan, Reactor& reactor, uint16_t port, uint64_t link)
      : plan_(plan), reactor_(reactor), port_(port), random_(RandomBits(plan.seed(), link)) {
    MutexLock lock(mutex_);
    inner_ = &inner;
  }

  void Start(LinkSink* sink) {
    MutexLock lock(sink_mutex_);
    sink_ = sink;
  }

  void Detach() {
    {
      MutexLock lock(sink_mutex_);
      sink_ = nullptr;
    }
    MutexLock lock(mutex_);
    inner_ = nullptr;
    held_.clear();
  }

  bool TryWrite(WireFrame& frame) {
    {
      MutexLock lock(mutex_);
      const LinkFaults faults = plan_.FaultsOf(port_);
      const uint64_t limit = faults.queue_bytes > 0 ? faults.queue_bytes : kDefaultQueueBytes;
      if (!held_.empty() && held_bytes_ + FrameBytes(frame) > limit) {
        was_refused_ = true;
        return false;
      }
      Take(std::exchange(frame, WireFrame()), faults);
    }
    Release();
    return true;
  }

  void Close() {
    {
      MutexLock lock(mutex_);
      is_closing_ = true;
    }
    Release();
  }

  // Gives the inner link what is due. Any thread.
  void Release() {
    bool tell = false;
    {
      MutexLock lock(mutex_);
      if (inner_ == nullptr) return;
      ReleaseDue();
      if (was_refused_ && held_bytes_ <= kDefaultQueueBytes / 2) {
        was_refused_ = false;
        tell = true;
      }
      if (held_.empty() && is_closing_) {
        is_closing_ = false;
        inner_->Close();
      }
    }
    if (tell) {
      reactor_.Post([self = shared_from_this()] {
        MutexLock lock(self->sink_mutex_);
        if (self->sink_ != nullptr) self->sink_->OnWritable();
      });
    }
  }

 private:
  struct Held {
    absl::Duration due;
    WireFrame frame;
  };

  void Hold(WireFrame frame, const LinkFaults& faults) MOEBIUS_REQUIRES(mutex_) {
    const absl::Duration now = reactor_.clock().Now();
    absl::Duration due = now + faults.min_delay;
    if (faults.max_delay > faults.min_delay) {
      due += random_.Unit() * (faults.max_delay - faults.min_delay);
    }
    last_due_ = std::max(last_due_, due);
    if (faults.bytes_per_second > 0) {
      last_due_ += absl::Seconds(1) * static_cast<double>(FrameBytes(frame)) /
                   static_cast<double>(faults.bytes_per_second);
    }
    held_bytes_ += FrameBytes(frame);
    held_.push_back({last_due_, std::move(frame)});
  }

  void Take(WireFrame frame, const LinkFaults& faults) MOEBIUS_REQUIRES(mutex_) {
    if (faults.cut) return;
    // Three draws for every frame, so that one fault does not move another's.
    const bool lose = random_.Unit() < faults.lose;
    const bool duplicate = random_.Unit() < faults.duplicate;
    const bool corrupt = random_.Unit() < faults.corrupt;
    const uint64_t bit = random_.Bits();
    if (lose) return;
    if (faults.wire_version.has_value()) SetVersion(&frame, *faults.wire_version);
    if (duplicate) Hold(frame, faults);
    if (corrupt) FlipBit(&frame, bit);
    Hold(std::move(frame), faults);
  }

  static void SetVersion(WireFrame* frame, uint16_t version) {
    frame->header[kWireVersionOffset] = static_cast<uint8_t>(version);
    frame->header[kWireVersionOffset + 1] = static_cast<uint8_t>(version >> 8);
  }

  static void FlipBit(WireFrame* frame, uint64_t bit) {
    bit %= 8 * FrameBytes(*frame);
    const uint8_t mask = static_cast<uint8_t>(1 << (bit % 8));
    size_t byte = bit / 8;
    if (byte < kFrameHeaderBytes) {
      frame->header[byte] ^= mask;
      return;
    }
    byte -= kFrameHeaderBytes;
    BytesBuilder copy(PayloadBytes(frame->payload));
    CopyPayload(frame->payload, copy.data());
    copy.data()[byte] ^= mask;
    frame->payload = {std::move(copy).Share()};
  }

  void ReleaseDue() MOEBIUS_REQUIRES(mutex_) {
    const absl::Duration now = reactor_.clock().Now();
    while (!held_.empty()) {
      const LinkFaults faults = plan_.FaultsOf(port_);
      if (faults.stop) return ReleaseLater(now + kStopPoll);
      if (held_.front().due > now) return ReleaseLater(held_.front().due);
      const uint64_t bytes = FrameBytes(held_.front().frame);
      if (!faults.cut && !inner_->TryWrite(held_.front().frame)) return;  // its OnWritable follows
      held_bytes_ -= bytes;
      held_.pop_front();
    }
  }

  void ReleaseLater(absl::Duration time) MOEBIUS_REQUIRES(mutex_) {
    if (armed_ <= time && armed_ > reactor_.clock().Now()) return;
    armed_ = time;
    reactor_.RunAt(time, [weak = weak_from_this()] {
      if (const auto self = weak.lock(); self != nullptr) self->Release();
    });
  }

  const FaultPlan& plan_;
  Reactor& reactor_;
  const uint16_t port_;
  Mutex sink_mutex_;
  LinkSink* sink_ MOEBIUS_GUARDED_BY(sink_mutex_) = nullptr;
  Mutex mutex_;
  Link* inner_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  Random random_ MOEBIUS_GUARDED_BY(mutex_);
  std::deque<Held> held_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t held_bytes_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  absl::Duration last_due_ MOEBIUS_GUARDED_BY(mutex_) = absl::ZeroDuration();
  absl::Duration armed_ MOEBIUS_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  bool was_refused_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_closing_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

class FaultyLink final : public Link, public LinkSink {
 public:
  FaultyLink(std::unique_ptr<Link> inner, const FaultPlan& plan, Reactor& reactor, uint16_t port,
             uint64_t number)
      : held_(std::make_shared<HeldFrames>(*inner, plan, reactor, port, number)),
        inner_(std::move(inner)) {}
  ~FaultyLink() override { held_->Detach(); }

  void Start(LinkSink& sink) override {
    sink_ = &sink;
    held_->Start(&sink);
    inner_->Start(*this);
  }
  bool TryWrite(WireFrame& frame) override { return held_->TryWrite(frame); }
  void Close() override { held_->Close(); }
  LinkFacts facts() const override { return inner_->facts(); }

  void OnFrame(WireFrame frame) override { sink_->OnFrame(std::move(frame)); }
  void OnWritable() override { held_->Release(); }
  void OnClosed(absl::Status reason) override { sink_->OnClosed(std::move(reason)); }

 private:
  LinkSink* sink_ = nullptr;
  std::shared_ptr<HeldFrames> held_;
  std::unique_ptr<Link> inner_;  // first to go: its calls end
};

}  // namespace

FaultyProvider::FaultyProvider(LinkProvider& inner, const FaultPlan& plan, Reactor& reactor)
    : inner_(inner), plan_(plan), reactor_(reactor) {}

std::unique_ptr<Link> FaultyProvider::Wrap(std::unique_ptr<Link> inner, uint16_t port) {
  return std::make_unique<FaultyLink>(std::move(inner), plan_, reactor_, port,
                                      next_link_.fetch_add(1));
}

// Wraps what the inner listener accepts.
class FaultyProvider::Listener final : public LinkListener, public LinkAcceptor {
 public:
  Listener(FaultyProvider& provider, LinkAcceptor& acceptor)
      : provider_(provider), acceptor_(acceptor) {}

  absl::Status Open(const Address& address) {
    MOEBIUS_ASSIGN_OR_RETURN(inner_, provider_.inner_.Listen(address, *this));
    port_.store(inner_->address().port);
    return absl::OkStatus();
  }
  Address address() const override { return inner_->address(); }
  void OnLink(std::unique_ptr<Link> link) override {
    acceptor_.OnLink(provider_.Wrap(std::move(link), port_.load()));
  }

 private:
  FaultyProvider& provider_;
  LinkAcceptor& acceptor_;
  std::atomic<uint16_t> port_{0};
  std::unique_ptr<LinkListener> inner_;
};

absl::StatusOr<std::unique_ptr<LinkListener>> FaultyProvider::Listen(const Address& address,
                                                                     LinkAcceptor& acceptor) {
  auto listener = std::make_unique<Listener>(*this, acceptor);
  MOEBIUS_RETURN_IF_ERROR(listener->Open(address));
  return std::unique_ptr<LinkListener>(std::move(listener));
}

absl::StatusOr<std::unique_ptr<Link>> FaultyProvider::Dial(const Address& address, Lane lane) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Link> inner, inner_.Dial(address, lane));
  return Wrap(std::move(inner), address.port);
}

}  // namespace moebius
