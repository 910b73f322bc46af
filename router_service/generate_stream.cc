// SPDX-License-Identifier: Apache-2.0
#include "router_service/generate_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"

namespace moebius {

GenerateStream::GenerateStream(size_t max_events, std::function<void()> wake_writer,
                               size_t max_history)
    : max_events_(max_events),
      wake_writer_(std::move(wake_writer)),
      max_history_(max_history),
      keeps_history_(max_history > 0) {
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
  if (leader_ != nullptr) {
    cancelled_.store(true, std::memory_order_relaxed);
    return leader_->Lose(this);
  }
  {
    MutexLock lock(mutex_);
    left_ = !TakeStock().empty();
    if (left_) {
      events_.clear();
    } else {
      cancelled_.store(true, std::memory_order_relaxed);
    }
  }
  wake_writer_();
}

void GenerateStream::Lose(const GenerateStream* follower) {
  {
    MutexLock lock(mutex_);
    std::erase_if(followers_, [follower](const std::weak_ptr<GenerateStream>& candidate) {
      return candidate.lock().get() == follower;
    });
    if (left_ && TakeStock().empty()) cancelled_.store(true, std::memory_order_relaxed);
  }
  wake_writer_();
}

GenerateStream::Followers GenerateStream::TakeStock() {
  Followers followers;
  std::erase_if(followers_, [&followers](const std::weak_ptr<GenerateStream>& candidate) {
    std::shared_ptr<GenerateStream> follower = candidate.lock();
    if (follower == nullptr) return true;
    followers.push_back(std::move(follower));
    return false;
  });
  return followers;
}

std::shared_ptr<GenerateStream> GenerateStream::Follow() {
  if (leader_ != nullptr) return leader_->Follow();
  auto follower = std::make_shared<GenerateStream>(max_history_ + 1, wake_writer_);
  follower->leader_ = shared_from_this();
  MutexLock lock(mutex_);
  if (!keeps_history_ || cancelled() || TakeStock().size() >= kMaxFollowers) return nullptr;
  for (const GenerateEvent& event : history_) follower->Push(event);
  if (ended_) follower->End(status_);
  followers_.push_back(follower);
  return follower;
}

void GenerateStream::PushToFollower(const GenerateEvent& event) {
  bool is_late = false;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    is_late = !event.finished && events_.size() + 1 >= max_events_;
  }
  if (!is_late) return Push(event);
  End(absl::ResourceExhaustedError(
      absl::StrCat("its reader left ", max_events_ - 1, " chunks untaken")));
}

void GenerateStream::EndFollower(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
  }
  End(status);
}

bool GenerateStream::HasRoom() const {
  MutexLock lock(mutex_);
  return HasRoomLocked();
}

bool GenerateStream::HasRoomLocked() const {
  if (left_ || events_.size() < max_events_) return true;
  // Its own reader does not hold those up who follow, as far as events are kept anyway.
  const bool is_followed = std::any_of(
      followers_.begin(), followers_.end(),
      [](const std::weak_ptr<GenerateStream>& follower) { return !follower.expired(); });
  return is_followed && events_.size() < max_history_;
}

void GenerateStream::SetReader(std::function<void()> on_news) {
  MutexLock lock(reader_mutex_);
  on_news_ = std::move(on_news);
  if (on_news_) on_news_();
}

void GenerateStream::Push(const GenerateEvent& event) {
  Followers followers;
  {
    MutexLock lock(mutex_);
    MOEBIUS_CHECK(!ended_);
    // Whoever followed a moment ago, when the writer asked for room, may have gone.
    MOEBIUS_CHECK(event.finished || HasRoomLocked() || max_history_ > 0);
    if (keeps_history_ && history_.size() == max_history_) {
      keeps_history_ = false;
      history_ = std::vector<GenerateEvent>();
    }
    if (keeps_history_) history_.push_back(event);
    followers = TakeStock();
    if (!left_) events_.push_back(event);
    changed_.SignalAll();
  }
  TellReader();
  for (const auto& follower : followers) follower->PushToFollower(event);
}

void GenerateStream::End(const absl::Status& status) {
  Followers followers;
  {
    MutexLock lock(mutex_);
    MOEBIUS_CHECK(!ended_);
    ended_ = true;
    status_ = status;
    followers = TakeStock();
    changed_.SignalAll();
  }
  TellReader();
  for (const auto& follower : followers) follower->EndFollower(status);
}

void GenerateStream::TellReader() {
  MutexLock lock(reader_mutex_);
  if (on_news_) on_news_();
}

}  // namespace moebius
