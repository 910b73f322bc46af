// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/reactor.h"

namespace moebius {

void Reactor::Post(Reaction reaction) {
  MutexLock lock(mutex_);
  posted_.push_back(std::move(reaction));
  changed_.Signal();
}

Reactor::TimerId Reactor::RunAt(absl::Duration time, Reaction reaction) {
  MutexLock lock(mutex_);
  const TimerId id(time, next_timer_++);
  timers_.emplace(id, std::move(reaction));
  if (timers_.begin()->first == id) changed_.Signal();
  return id;
}

bool Reactor::Cancel(const TimerId& id) {
  // The reaction's captures are destroyed outside the lock: they may own what calls back in here.
  Reaction cancelled;
  MutexLock lock(mutex_);
  const auto timer = timers_.find(id);
  if (timer == timers_.end()) return false;
  cancelled = std::move(timer->second);
  timers_.erase(timer);
  return true;
}

bool Reactor::TakeReady(Reaction* reaction) {
  MutexLock lock(mutex_);
  if (!posted_.empty()) {
    *reaction = std::move(posted_.front());
    posted_.pop_front();
    return true;
  }
  const auto timer = timers_.begin();
  if (timer == timers_.end() || timer->first.first > clock_.Now()) return false;
  *reaction = std::move(timer->second);
  timers_.erase(timer);
  return true;
}

int Reactor::RunReady() {
  int count = 0;
  Reaction reaction;
  while (TakeReady(&reaction)) {
    reaction();
    reaction = nullptr;
    ++count;
  }
  return count;
}

std::optional<absl::Duration> Reactor::NextTimer() const {
  MutexLock lock(mutex_);
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first.first;
}

void Reactor::WaitUntilReady() {
  MutexLock lock(mutex_);
  while (posted_.empty() && !woken_) {
    if (timers_.empty()) {
      changed_.Wait(mutex_);
      continue;
    }
    const absl::Duration left = timers_.begin()->first.first - clock_.Now();
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitWithTimeout(mutex_, left);
  }
  woken_ = false;
}

void Reactor::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.Signal();
}

ReactorThread::ReactorThread(Reactor& reactor) : reactor_(reactor) {
  thread_ = std::thread([this] {
    while (true) {
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
      }
      reactor_.WaitUntilReady();
      reactor_.RunReady();
    }
  });
}

ReactorThread::~ReactorThread() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  reactor_.Wake();
  thread_.join();
}

}  // namespace moebius
