// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/accept_loop.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr uint64_t kWakeId = ~uint64_t{0};
constexpr uint64_t kListenerBit = uint64_t{1} << 63;
// Connections taken in one turn, so that a flood of them does not keep silent ones from being cut.
constexpr int kMaxAcceptsPerTurn = 64;
// How long to leave connections waiting when there is no descriptor for them.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// While the loop ends: whoever is waited for may call Wake before it is over.
constexpr int kEndingMilliseconds = 10;

}  // namespace

std::string DescribeRefusal(absl::string_view host, absl::string_view port,
                            const AcceptLoopOptions& options) {
  return absl::StrCat("closed a connection of ", host, " to the ", port, " port at once: it takes ",
                      options.max_connections, " connections, ",
                      options.max_connections_per_address, " of one address");
}

AcceptLoop::AcceptLoop(const AcceptLoopOptions& options, ListenSockets sockets, const Clock& clock,
                       ConnectionTaker& taker)
    : options_(options),
      clock_(clock),
      taker_(taker),
      sockets_(std::move(sockets)),
      table_(options.max_connections, options.max_connections_per_address) {}

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Listen(const AcceptLoopOptions& options,
                                                               const Address& address,
                                                               const Clock& clock,
                                                               ConnectionTaker& taker) {
  MOEBIUS_ASSIGN_OR_RETURN(ListenSockets sockets, OpenListenSockets(address));
  std::unique_ptr<AcceptLoop> loop(new AcceptLoop(options, std::move(sockets), clock, taker));
  MOEBIUS_RETURN_IF_ERROR(loop->Open());
  return loop;
}

absl::Status AcceptLoop::Open() {
  epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = OwnedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  bool watched = epoll_.fd() >= 0 && wake_.fd() >= 0 && Watch(wake_.fd(), kWakeId, EPOLLIN);
  for (size_t i = 0; watched && i < sockets_.sockets.size(); ++i) {
    watched = Watch(sockets_.sockets[i].fd(), kListenerBit | i, EPOLLIN);
  }
  if (!watched) return absl::ResourceExhaustedError("no descriptor for the accept loop");
  return absl::OkStatus();
}

AcceptLoop::~AcceptLoop() { Finish(); }

void AcceptLoop::Finish() {
  if (!thread_.joinable()) return;
  StopAccepting();
  thread_.join();
}

void AcceptLoop::Run() {
  thread_ = std::thread([this] { Loop(); });
}

void AcceptLoop::StopAccepting() {
  stopping_.store(true);
  Wake();
  MutexLock lock(state_mutex_);
  while (is_listening_) state_changed_.Wait(state_mutex_);
}

void AcceptLoop::Wake() {
  const uint64_t one = 1;
  // Fails only when it is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof(one));
}

bool AcceptLoop::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) == 0;
}

int AcceptLoop::WaitMilliseconds() const {
  if (stopping_.load()) return kEndingMilliseconds;
  const absl::Duration now = clock_.Now();
  absl::Duration next = table_.OldestSilence() + options_.silence_limit;
  if (accept_again_ > now) next = std::min(next, accept_again_);
  if (next == absl::InfiniteDuration()) return -1;
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(next - now, absl::ZeroDuration())) +
                          1);
}

void AcceptLoop::Loop() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_.fd(), events.data(), events.size(), WaitMilliseconds());
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) {
        uint64_t ignored = 0;
        [[maybe_unused]] const ssize_t size = read(wake_.fd(), &ignored, sizeof(ignored));
      } else if ((id & kListenerBit) != 0) {
        if (!stopping_.load()) Accept(sockets_.sockets[id & ~kListenerBit].fd());
      } else {
        const std::string unused_host = table_.Remove(id);
        if (!unused_host.empty() && !stopping_.load()) taker_.OnConnectionUnused(unused_host);
      }
    }
    if (accept_again_ > absl::ZeroDuration() && clock_.Now() >= accept_again_) {
      accept_again_ = absl::ZeroDuration();
      for (size_t i = 0; i < sockets_.sockets.size(); ++i) {
        Watch(sockets_.sockets[i].fd(), kListenerBit | i, EPOLLIN);
      }
    }
    const bool stopping = stopping_.load();
    if (options_.silence_limit != absl::InfiniteDuration()) {
      table_.CutSilent(stopping ? absl::InfiniteDuration() : clock_.Now() - options_.silence_limit);
    }
    taker_.OnTurn();
    if (!stopping) continue;
    sockets_.sockets.clear();
    {
      MutexLock lock(state_mutex_);
      is_listening_ = false;
      state_changed_.SignalAll();
    }
    if (taker_.IsOver()) break;
  }
  taker_.OnEnd();
  is_over_.store(true);
}

void AcceptLoop::Accept(int listener) {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    OwnedFd socket(accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() >= 0) {
      Adopt(std::move(socket), RemoteAddressOf(address));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // They wait in the kernel; looking again at once would only burn a core.
      accept_again_ = clock_.Now() + kAcceptPause;
      for (const OwnedFd& waiting : sockets_.sockets) {
        epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, waiting.fd(), nullptr);
      }
      return;
    }
    // A connection that was gone before it was taken is no reason to stop.
    if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) return;
  }
}

void AcceptLoop::Adopt(OwnedFd socket, const RemoteAddress& remote) {
  if (!table_.HasRoomFor(remote.host)) return taker_.OnConnectionRefused(remote.host);
  const uint64_t generation = taker_.PrepareConnection();
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  OwnedFd duplicate(fcntl(socket.fd(), F_DUPFD_CLOEXEC, 0));
  if (duplicate.fd() < 0) return;
  const int watched = duplicate.fd();
  const uint64_t id = table_.Add(remote, std::move(duplicate), generation, clock_.Now());
  // Only what is reported without being asked for: the socket was shut down, or reset.
  if (!Watch(watched, id, 0)) {
    table_.Remove(id);
    return;
  }
  taker_.TakeConnection(std::move(socket));
}

}  // namespace moebius
