// SPDX-License-Identifier: Apache-2.0
#include "router_service/generate_stream.h"

#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/clock.h"

namespace moebius {

GenerateStream::GenerateStream(size_t max_events, std::function<void()> wake_writer)
    : max_events_(max_events), wake_writer_(std::move(wake_writer)) {
  MOEBIUS_CHECK_GE(max_events, 1u);
}

std::optional<GenerateEvent> GenerateStream::Next(absl::Duration timeout) {
  std::optional<GenerateEvent> event;
  bool had_no_room = false;
  {
    MutexLock lock(mutex_);
    const absl::Duration deadline = Clock::Monotonic().Now() + timeout;
    while (events_.empty() && !ended_) {
      const absl::Duration left = deadline - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      if (left == absl::InfiniteDuration()) {
        changed_.Wait(mutex_);
      } else {
        changed_.WaitWithTimeout(mutex_, left);
      }
    }
    if (events_.empty()) return std::nullopt;
    had_no_room = events_.size() == max_events_;
    event = std::move(events_.front());
    events_.pop_front();
  }
  if (had_no_room) wake_writer_();
  return event;
}

bool GenerateStream::ended() const {
  MutexLock lock(mutex_);
  return ended_ && events_.empty();
}

absl::Status GenerateStream::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void GenerateStream::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  wake_writer_();
}

bool GenerateStream::HasRoom() const {
  MutexLock lock(mutex_);
  return events_.size() < max_events_;
}

void GenerateStream::Push(GenerateEvent event) {
  MutexLock lock(mutex_);
  MOEBIUS_CHECK(!ended_);
  MOEBIUS_CHECK(event.finished || events_.size() < max_events_);
  events_.push_back(std::move(event));
  changed_.SignalAll();
}

void GenerateStream::End(absl::Status status) {
  MutexLock lock(mutex_);
  MOEBIUS_CHECK(!ended_);
  ended_ = true;
  status_ = std::move(status);
  changed_.SignalAll();
}

}  // namespace moebius
