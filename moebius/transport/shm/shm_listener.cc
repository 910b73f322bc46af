// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/transport/shm/shm_connections.h"

namespace moebius {
namespace {

// Connections taken in one turn, so that a flood of them does not hold up the links.
constexpr int kMaxAcceptsPerTurn = 64;
// How long to leave connections waiting when there is no descriptor for them.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Tags from 1 on are connections.
constexpr uint32_t kListenTag = 0;

std::string NameOf(const ShmPeer& peer) {
  return peer.pid == 0 ? "a process of another container" : absl::StrCat("process ", peer.pid);
}

// Accepts on the loop's thread. It lives until both the listener and the loop have let go of it.
class Acceptance final : public PollWatcher, public std::enable_shared_from_this<Acceptance> {
 public:
  Acceptance(ShmContext& context, OwnedFd socket, LinkAcceptor& acceptor)
      : context_(context),
        connections_(context.options.max_connections, context.options.max_connections_per_process),
        acceptor_(&acceptor),
        socket_(std::move(socket)) {}

  void Start() MOEBIUS_EXCLUDES(mutex_);
  // No link comes after this, and the port is free.
  void Stop() MOEBIUS_EXCLUDES(mutex_);
  void OnReady(uint32_t tag, uint32_t events) override MOEBIUS_EXCLUDES(mutex_);

 private:
  // A connection that has not handed over its memory yet.
  struct Handshake {
    OwnedFd socket;
    ShmPeer peer;
    std::shared_ptr<void> connection;
    uint64_t watch_id = 0;
    absl::Duration since;
  };
  using Handshakes = std::map<uint32_t, Handshake>;  // in the order of their coming

  void Accept() MOEBIUS_REQUIRES(mutex_);
  void Adopt(OwnedFd socket) MOEBIUS_REQUIRES(mutex_);
  void AcceptLater() MOEBIUS_REQUIRES(mutex_);
  void OnHandshake(Handshakes::iterator it) MOEBIUS_REQUIRES(mutex_);
  absl::Status TakeHandover(Handshake& handshake, ShmHandover handover) MOEBIUS_REQUIRES(mutex_);
  void CutSilent() MOEBIUS_REQUIRES(mutex_);
  void CutOldest(absl::string_view why) MOEBIUS_REQUIRES(mutex_);
  Handshake Take(Handshakes::iterator it) MOEBIUS_REQUIRES(mutex_);

  absl::StatusOr<std::shared_ptr<void>> Count(pid_t pid) MOEBIUS_REQUIRES(mutex_);
  void Tell(const std::string& source, absl::string_view kind, absl::string_view what) const;
  void TellUnopened(const ShmPeer& peer, absl::string_view why) const;

  ShmContext& context_;
  ShmConnections connections_;
  Mutex mutex_;  // held while the acceptor is called
  LinkAcceptor* acceptor_ MOEBIUS_GUARDED_BY(mutex_);
  OwnedFd socket_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t watch_id_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  Handshakes handshakes_ MOEBIUS_GUARDED_BY(mutex_);
  uint32_t next_tag_ MOEBIUS_GUARDED_BY(mutex_) = kListenTag + 1;
  bool is_cut_planned_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

void Acceptance::Start() {
  context_.loop->Post([self = shared_from_this()] {
    MutexLock lock(self->mutex_);
    if (self->acceptor_ == nullptr) return;
    const absl::StatusOr<uint64_t> id =
        self->context_.loop->Watch(self->socket_.fd(), EPOLLIN, self, kListenTag);
    // Without room in the kernel nobody is accepted, and dialers hear that the queue is full.
    if (id.ok()) self->watch_id_ = *id;
  });
}

void Acceptance::Stop() {
  MutexLock lock(mutex_);
  acceptor_ = nullptr;
  if (watch_id_ != 0) context_.loop->Forget(watch_id_, socket_.fd());
  socket_.Close();
  while (!handshakes_.empty()) Take(handshakes_.begin());
}

void Acceptance::OnReady(uint32_t tag, uint32_t) {
  MutexLock lock(mutex_);
  if (acceptor_ == nullptr) return;
  if (tag == kListenTag) return Accept();
  const auto found = handshakes_.find(tag);
  if (found != handshakes_.end()) OnHandshake(found);
}

void Acceptance::Accept() {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    OwnedFd socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() >= 0) {
      Adopt(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return AcceptLater();
    }
    if (errno != ECONNABORTED && errno != EINTR) return;
  }
  context_.loop->Again(shared_from_this(), kListenTag);
}

void Acceptance::AcceptLater() {
  context_.loop->RunAt(context_.loop->Now() + kAcceptPause,
                       [self = shared_from_this()] { self->OnReady(kListenTag, 0); });
}

void Acceptance::Adopt(OwnedFd socket) {
  const absl::StatusOr<ShmPeer> peer = CheckShmPeer(socket.fd());
  if (!peer.ok()) {
    Increase(context_.refused);
    Tell("another user", "shm user",
         absl::StrCat("refused a connection: ", peer.status().message()));
    return SendRefusal(socket.fd(), peer.status());
  }
  absl::StatusOr<std::shared_ptr<void>> connection = Count(peer->pid);
  if (!connection.ok()) {
    Increase(context_.crowded);
    const std::string process = NameOf(*peer);
    Tell(
        process, "shm connection",
        absl::StrCat("closed a connection of ", process, " to the ", kShmPort,
                     " port at once: it takes ", context_.options.max_connections, " connections, ",
                     context_.options.max_connections_per_process, " of one process"));
    return SendRefusal(socket.fd(), connection.status());
  }
  if (handshakes_.size() >= context_.options.max_handshakes) {
    CutOldest("others came after it, and it said nothing");
  }
  Increase(context_.accepted);
  const uint32_t tag = next_tag_++;
  if (next_tag_ == kListenTag) ++next_tag_;
  Handshake handshake;
  handshake.peer = *peer;
  handshake.connection = *std::move(connection);
  handshake.since = context_.loop->Now();
  const absl::StatusOr<uint64_t> id =
      context_.loop->Watch(socket.fd(), EPOLLIN | EPOLLRDHUP, shared_from_this(), tag);
  if (!id.ok()) return SendRefusal(socket.fd(), id.status());
  handshake.watch_id = *id;
  handshake.socket = std::move(socket);
  const auto added = handshakes_.emplace(tag, std::move(handshake)).first;
  if (!is_cut_planned_) CutSilent();
  // Good dialers speak at once: most handovers are there already.
  OnHandshake(added);
}

// Let go before the provider: its links are.
absl::StatusOr<std::shared_ptr<void>> Acceptance::Count(pid_t pid) {
  MOEBIUS_ASSIGN_OR_RETURN(std::shared_ptr<void> counted, connections_.Add(pid));
  Increase(context_.open);
  return std::shared_ptr<void>(nullptr, [&open = context_.open, counted](void*) {
    open.fetch_sub(1, std::memory_order_relaxed);
  });
}

void Acceptance::Tell(const std::string& source, absl::string_view kind,
                      absl::string_view what) const {
  if (context_.options.on_refusal) {
    context_.options.on_refusal({source, std::string(kind)}, std::string(what));
  }
}

void Acceptance::TellUnopened(const ShmPeer& peer, absl::string_view why) const {
  const std::string process = NameOf(peer);
  Tell(process, "shm handshake",
       absl::StrCat("a connection of ", process, " to the ", kShmPort,
                    " port ended before a peer spoke: ", why));
}

void Acceptance::OnHandshake(Handshakes::iterator it) {
  absl::StatusOr<std::optional<ShmHandover>> handover =
      ReceiveHandover(it->second.socket.fd(), context_.options.max_ring_bytes);
  if (handover.ok() && !handover->has_value()) return;
  Handshake handshake = Take(it);
  const absl::Status status =
      handover.ok() ? TakeHandover(handshake, **std::move(handover)) : handover.status();
  if (status.ok()) return;
  Increase(context_.refused);
  TellUnopened(handshake.peer, status.message());
  SendRefusal(handshake.socket.fd(), status);
}

absl::Status Acceptance::TakeHandover(Handshake& handshake, ShmHandover handover) {
  if (handover.ring_bytes < context_.MinRingBytes()) {
    return absl::InvalidArgumentError(absl::StrCat("handover: rings of ", handover.ring_bytes,
                                                   " bytes, two of the largest ", "frames need ",
                                                   context_.MinRingBytes()));
  }
  ShmAccepted accepted;
  accepted.socket = std::move(handshake.socket);
  accepted.handover = std::move(handover);
  accepted.peer = handshake.peer;
  accepted.connection = std::move(handshake.connection);
  absl::StatusOr<std::unique_ptr<Link>> link = MakeAcceptedShmLink(context_, accepted);
  if (!link.ok()) {
    handshake.socket = std::move(accepted.socket);
    return link.status();
  }
  acceptor_->OnLink(*std::move(link));
  return absl::OkStatus();
}

void Acceptance::CutOldest(absl::string_view why) {
  Increase(context_.silent_cut);
  TellUnopened(handshakes_.begin()->second.peer, why);
  Take(handshakes_.begin());
}

void Acceptance::CutSilent() {
  const absl::Duration limit = context_.options.silence_limit;
  const absl::Duration now = context_.loop->Now();
  while (!handshakes_.empty() && handshakes_.begin()->second.since + limit <= now) {
    CutOldest("it said nothing");
  }
  is_cut_planned_ = !handshakes_.empty();
  if (!is_cut_planned_) return;
  context_.loop->RunAt(handshakes_.begin()->second.since + limit, [self = shared_from_this()] {
    MutexLock lock(self->mutex_);
    if (self->acceptor_ != nullptr) self->CutSilent();
  });
}

Acceptance::Handshake Acceptance::Take(Handshakes::iterator it) {
  Handshake handshake = std::move(it->second);
  handshakes_.erase(it);
  context_.loop->Forget(handshake.watch_id, handshake.socket.fd());
  return handshake;
}

class ShmListener final : public LinkListener {
 public:
  ShmListener(std::shared_ptr<Acceptance> acceptance, Address address)
      : acceptance_(std::move(acceptance)), address_(std::move(address)) {}
  ~ShmListener() override { acceptance_->Stop(); }
  Address address() const override { return address_; }

 private:
  const std::shared_ptr<Acceptance> acceptance_;
  const Address address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinkListener>> MakeShmListener(ShmContext& context,
                                                              const Address& address,
                                                              LinkAcceptor& acceptor) {
  MOEBIUS_RETURN_IF_ERROR(ValidateListenAddress(address, Exposure::kLoopbackOnly));
  MOEBIUS_ASSIGN_OR_RETURN(ShmListenSocket listening, OpenShmListenSocket(address));
  auto acceptance = std::make_shared<Acceptance>(context, std::move(listening.socket), acceptor);
  acceptance->Start();
  return std::unique_ptr<LinkListener>(new ShmListener(std::move(acceptance), listening.address));
}

}  // namespace moebius
