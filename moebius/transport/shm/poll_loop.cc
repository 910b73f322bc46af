// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/poll_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr uint64_t kWakeId = 0;
// A guest that waits for one answer after the other is back sooner: between two layers of a step.
constexpr absl::Duration kGuestReturns = absl::Milliseconds(5);

bool Add(int epoll, int fd, uint32_t events, uint64_t id) {
  epoll_event event = {};
  event.events = events | EPOLLET;
  event.data.u64 = id;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PollLoop>> PollLoop::Start() {
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  OwnedFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (epoll.fd() < 0 || wake.fd() < 0 || !Add(epoll.fd(), wake.fd(), EPOLLIN, kWakeId)) {
    return absl::ResourceExhaustedError("no descriptor for an event loop");
  }
  return std::unique_ptr<PollLoop>(new PollLoop(std::move(epoll), std::move(wake)));
}

PollLoop::PollLoop(OwnedFd epoll, OwnedFd wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)), thread_([this] { Loop(); }) {}

PollLoop::~PollLoop() {
  stopping_.store(true);
  {
    MutexLock lock(seat_mutex_);
    own_wakeup_.Signal();
  }
  Wake();
  thread_.join();
}

void PollLoop::Post(Reactor::Reaction reaction) {
  reactor_.Post(std::move(reaction));
  Wake();
}

void PollLoop::Wake() {
  const uint64_t one = 1;
  // Never read, and it takes 2^64 of them to fill the counter.
  MOEBIUS_CHECK_EQ(write(wake_.fd(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

absl::StatusOr<uint64_t> PollLoop::Watch(int fd, uint32_t events,
                                         std::shared_ptr<PollWatcher> watcher, uint32_t tag) {
  const uint64_t id = next_id_++;
  if (!Add(epoll_.fd(), fd, events, id)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot watch a descriptor: ", std::strerror(errno)));
  }
  watched_.emplace(id, Watched{std::move(watcher), tag});
  return id;
}

void PollLoop::Forget(uint64_t id, int fd) {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
  if (std::this_thread::get_id() == runner_.load()) {
    watched_.erase(id);
  } else {
    Post([this, id] { watched_.erase(id); });
  }
}

void PollLoop::Again(std::shared_ptr<PollWatcher> watcher, uint32_t tag) {
  again_.push_back({std::move(watcher), tag});
}

int PollLoop::WaitMilliseconds() const {
  if (!again_.empty()) return 0;
  const std::optional<absl::Duration> next = reactor_.NextTimer();
  if (!next.has_value()) return -1;
  const absl::Duration left = std::clamp(*next - Now(), absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

void PollLoop::Loop() {
  while (EnterOwn()) {
    PollOnce();
    LeaveOwn();
  }
}

// False when the loop ends.
bool PollLoop::EnterOwn() {
  MutexLock lock(seat_mutex_);
  while (!stopping_.load()) {
    const absl::Duration left = guest_left_at_ + kGuestReturns - Now();
    if (has_guest_) {
      own_waits_for_guest_ = true;
      own_wakeup_.Wait(seat_mutex_);
      own_waits_for_guest_ = false;
    } else if (num_sleepers_ == 0 && left > absl::ZeroDuration()) {
      own_wakeup_.WaitWithTimeout(seat_mutex_, left);
    } else {
      is_own_in_ = true;
      return true;
    }
  }
  return false;
}

void PollLoop::LeaveOwn() {
  MutexLock lock(seat_mutex_);
  is_own_in_ = false;
  if (has_guest_) guest_wakeup_.Signal();
}

bool PollLoop::TryEnter() {
  MutexLock lock(seat_mutex_);
  if (has_guest_) {
    ++num_sleepers_;
    return false;
  }
  has_guest_ = true;
  if (is_own_in_) Wake();
  while (is_own_in_) guest_wakeup_.Wait(seat_mutex_);
  return true;
}

void PollLoop::StopSleeping() {
  MutexLock lock(seat_mutex_);
  --num_sleepers_;
}

void PollLoop::Leave() {
  MutexLock lock(seat_mutex_);
  has_guest_ = false;
  guest_left_at_ = Now();
  if (own_waits_for_guest_ || num_sleepers_ > 0) own_wakeup_.Signal();
}

void PollLoop::PollOnce() {
  runner_.store(std::this_thread::get_id());
  std::array<epoll_event, 64> events;
  num_waits_.fetch_add(1, std::memory_order_relaxed);
  const int count = epoll_wait(epoll_.fd(), events.data(), events.size(), WaitMilliseconds());
  for (int i = 0; i < count; ++i) {
    const auto found = watched_.find(events[i].data.u64);
    if (found == watched_.end()) continue;
    // A copy: it may forget itself, or watch something else.
    const Watched watched = found->second;
    watched.watcher->OnReady(watched.tag, events[i].events);
  }
  RunAgain();
  reactor_.RunReady();
  runner_.store(std::thread::id());
}

void PollLoop::RunAgain() {
  again_now_.swap(again_);
  for (const Watched& watched : again_now_) watched.watcher->OnReady(watched.tag, 0);
  again_now_.clear();
}

}  // namespace moebius
