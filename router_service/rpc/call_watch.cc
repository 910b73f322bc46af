// SPDX-License-Identifier: Apache-2.0
#include "router_service/rpc/call_watch.h"

#include <utility>

#include "moebius/base/clock.h"

namespace moebius {
namespace {

constexpr int kLooks = 4;
// Calls that are gone are forgotten when so many have come since.
constexpr size_t kSweepCalls = 1024;

}  // namespace

CallWatch::CallWatch(absl::Duration max_wait) : max_wait_(max_wait), thread_([this] { Run(); }) {}

CallWatch::~CallWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void CallWatch::Add(const std::weak_ptr<WatchedCall>& call) {
  MutexLock lock(mutex_);
  calls_.push_back(call);
  // Between two looks calls may come and go by the thousand.
  if (calls_.size() % kSweepCalls == 0) TakeStock();
}

std::vector<std::shared_ptr<WatchedCall>> CallWatch::TakeStock() {
  std::vector<std::shared_ptr<WatchedCall>> alive;
  std::erase_if(calls_, [&alive](const std::weak_ptr<WatchedCall>& candidate) {
    std::shared_ptr<WatchedCall> call = candidate.lock();
    if (call == nullptr) return true;
    alive.push_back(std::move(call));
    return false;
  });
  return alive;
}

void CallWatch::Run() {
  while (true) {
    std::vector<std::shared_ptr<WatchedCall>> alive;
    {
      MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitWithTimeout(mutex_, max_wait_ / kLooks);
      if (stopping_) return;
      alive = TakeStock();
    }
    const absl::Duration now = Clock::Monotonic().Now();
    for (const std::shared_ptr<WatchedCall>& call : alive) call->EndIfStalled(now, max_wait_);
  }
}

}  // namespace moebius
