// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/loopback/loopback.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/spare_memory.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr uint16_t kFirstFreePort = 49152;

// One direction of a link: written at one end, delivered to the sink at the other.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  explicit Pipe(Reactor& reactor) : reactor_(reactor) {}

  // The reading end's sink. Delivery begins.
  void Attach(LinkSink* sink) {
    {
      MutexLock delivery(delivery_mutex_);
      sink_ = sink;
    }
    Schedule();
  }
  // No call of the sink runs or begins after this.
  void Detach() {
    MutexLock delivery(delivery_mutex_);
    sink_ = nullptr;
    MutexLock lock(mutex_);
    frames_.clear();
    is_read_ = false;
  }

  bool TryWrite(WireFrame& frame) {
    const uint64_t bytes = kFrameHeaderBytes + PayloadBytes(frame.payload);
    {
      MutexLock lock(mutex_);
      if (end_.has_value() || !is_read_) {
        // Nobody reads it any more: the other direction is about to say so.
        frame = WireFrame();
        return true;
      }
      if (!frames_.empty() && queued_bytes_ + bytes > kLoopbackQueueBytes) {
        was_refused_ = true;
        return false;
      }
      frames_.push_back(std::move(frame));
      queued_bytes_ += bytes;
    }
    frame = WireFrame();
    Schedule();
    return true;
  }

  // After what was written, the sink hears `reason`.
  void End(absl::Status reason) {
    {
      MutexLock lock(mutex_);
      if (end_.has_value()) return;
      end_ = std::move(reason);
    }
    Schedule();
  }

  // Runs on the reactor when a refused writer may try again.
  void OnRoom(std::function<void()> on_room) {
    MutexLock lock(mutex_);
    on_room_ = std::move(on_room);
  }

 private:
  void Schedule() {
    MutexLock lock(mutex_);
    if (std::exchange(is_scheduled_, true)) return;
    reactor_.Post([self = shared_from_this()] { self->DeliverAll(); });
  }

  void DeliverAll() {
    {
      MutexLock lock(mutex_);
      is_scheduled_ = false;
    }
    while (DeliverOne()) {
    }
  }

  bool DeliverOne() {
    MutexLock delivery(delivery_mutex_);
    if (sink_ == nullptr) return false;
    std::optional<WireFrame> frame;
    std::optional<absl::Status> end;
    std::function<void()> on_room;
    {
      MutexLock lock(mutex_);
      if (!frames_.empty()) {
        frame = std::move(frames_.front());
        frames_.pop_front();
        queued_bytes_ -= kFrameHeaderBytes + PayloadBytes(frame->payload);
        if (was_refused_ && queued_bytes_ <= kLoopbackQueueBytes / 2) {
          was_refused_ = false;
          on_room = on_room_;
        }
      } else if (end_.has_value() && !was_ended_) {
        was_ended_ = true;
        end = *end_;
      }
    }
    if (frame.has_value()) sink_->OnFrame(*std::move(frame));
    if (on_room != nullptr) on_room();
    if (end.has_value()) std::exchange(sink_, nullptr)->OnClosed(*std::move(end));
    return frame.has_value();
  }

  Reactor& reactor_;
  Mutex delivery_mutex_;  // held while the sink is called; taken before mutex_
  LinkSink* sink_ MOEBIUS_GUARDED_BY(delivery_mutex_) = nullptr;
  Mutex mutex_;
  SpareDeque<WireFrame> frames_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ MOEBIUS_GUARDED_BY(mutex_);
  std::function<void()> on_room_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_read_ MOEBIUS_GUARDED_BY(mutex_) = true;
  bool was_refused_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool was_ended_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_scheduled_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

class LoopbackLink final : public Link {
 public:
  LoopbackLink(std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out, Reactor& reactor,
               std::string remote)
      : in_(std::move(in)),
        out_(std::move(out)),
        reactor_(reactor),
        remote_(std::move(remote)),
        writable_(std::make_shared<Writable>()) {}

  ~LoopbackLink() override {
    {
      MutexLock lock(writable_->mutex);
      writable_->sink = nullptr;
    }
    out_->OnRoom(nullptr);
    in_->Detach();
    out_->End(absl::UnavailableError("the peer ended the link"));
  }

  void Start(LinkSink& sink) override {
    {
      MutexLock lock(writable_->mutex);
      writable_->sink = &sink;
    }
    out_->OnRoom([writable = writable_, &reactor = reactor_] {
      reactor.Post([writable] {
        MutexLock lock(writable->mutex);
        if (writable->sink != nullptr) writable->sink->OnWritable();
      });
    });
    in_->Attach(&sink);
  }
  bool TryWrite(WireFrame& frame) override { return out_->TryWrite(frame); }
  void Close() override {
    out_->End(absl::OkStatus());
    in_->End(absl::OkStatus());
  }
  LinkFacts facts() const override { return {remote_, "", true}; }

 private:
  struct Writable {
    Mutex mutex;
    LinkSink* sink MOEBIUS_GUARDED_BY(mutex) = nullptr;
  };
  std::shared_ptr<Pipe> in_;
  std::shared_ptr<Pipe> out_;
  Reactor& reactor_;
  const std::string remote_;
  std::shared_ptr<Writable> writable_;
};

// A dialed link to a port where nobody listens.
class RefusedLink final : public Link {
 public:
  RefusedLink(Reactor& reactor, absl::Status reason)
      : pipe_(std::make_shared<Pipe>(reactor)), reason_(std::move(reason)) {}
  ~RefusedLink() override { pipe_->Detach(); }
  void Start(LinkSink& sink) override {
    pipe_->Attach(&sink);
    pipe_->End(reason_);
  }
  bool TryWrite(WireFrame&) override { return false; }
  void Close() override { pipe_->End(absl::OkStatus()); }
  LinkFacts facts() const override { return {"", "", true}; }

 private:
  std::shared_ptr<Pipe> pipe_;
  const absl::Status reason_;
};

}  // namespace

// Who listens where. Shared by the provider and its listeners.
class LoopbackProvider::Ports {
 public:
  absl::StatusOr<uint16_t> Add(uint16_t port, LinkAcceptor& acceptor) {
    MutexLock lock(mutex_);
    if (port == 0) {
      port = kFirstFreePort;
      while (acceptors_.contains(port)) ++port;
    }
    if (!acceptors_.emplace(port, &acceptor).second) {
      return absl::UnavailableError(
          absl::StrCat("address already in use: port ", port, " of this process"));
    }
    return port;
  }
  void Remove(uint16_t port) {
    MutexLock lock(mutex_);
    acceptors_.erase(port);
  }
  // Calls the acceptor under the lock, so that Remove waits for it.
  bool Accept(uint16_t port, std::unique_ptr<Link> link) {
    MutexLock lock(mutex_);
    const auto found = acceptors_.find(port);
    if (found == acceptors_.end()) return false;
    found->second->OnLink(std::move(link));
    return true;
  }

 private:
  Mutex mutex_;
  std::map<uint16_t, LinkAcceptor*> acceptors_ MOEBIUS_GUARDED_BY(mutex_);
};

class LoopbackProvider::Listener final : public LinkListener {
 public:
  Listener(std::shared_ptr<Ports> ports, Address address)
      : ports_(std::move(ports)), address_(std::move(address)) {}
  ~Listener() override { ports_->Remove(address_.port); }
  Address address() const override { return address_; }

 private:
  std::shared_ptr<Ports> ports_;
  const Address address_;
};

LoopbackProvider::LoopbackProvider(Reactor& reactor)
    : reactor_(reactor), ports_(std::make_shared<Ports>()) {}
LoopbackProvider::~LoopbackProvider() = default;

absl::StatusOr<std::unique_ptr<LinkListener>> LoopbackProvider::Listen(const Address& address,
                                                                       LinkAcceptor& acceptor) {
  Address chosen = address;
  MOEBIUS_ASSIGN_OR_RETURN(chosen.port, ports_->Add(address.port, acceptor));
  return std::unique_ptr<LinkListener>(new Listener(ports_, chosen));
}

absl::StatusOr<std::unique_ptr<Link>> LoopbackProvider::Dial(const Address& address, Lane) {
  if (address.port == 0) return absl::InvalidArgumentError("loopback: port 0 is no port to dial");
  auto there = std::make_shared<Pipe>(reactor_);
  auto back = std::make_shared<Pipe>(reactor_);
  auto accepted = std::make_unique<LoopbackLink>(there, back, reactor_, "loopback");
  if (!ports_->Accept(address.port, std::move(accepted))) {
    return std::unique_ptr<Link>(new RefusedLink(
        reactor_,
        absl::UnavailableError(absl::StrCat("nobody listens on ", FormatAddress(address)))));
  }
  return std::unique_ptr<Link>(
      new LoopbackLink(back, there, reactor_, absl::StrCat("loopback:", address.port)));
}

}  // namespace moebius
