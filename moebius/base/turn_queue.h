// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// Elements that are handled one at a time, in the order in which they come: by a thread that waits
/// for them, or by the thread that brings one while nothing else waits or is being handled. Whoever
/// handles an element has the turn until EndTurn, and may then use what belongs to the turn.
///
/// Holds at most `capacity` waiting elements; what does not fit is the caller's to refuse.
/// Thread-safe.
template <typename T>
class TurnQueue {
 public:
  explicit TurnQueue(size_t capacity) : capacity_(capacity) { MOEBIUS_CHECK_GE(capacity, 1u); }

  /// False, with `element` untouched, when the queue is full or closed.
  bool TryPush(T& element) {
    MutexLock lock(mutex_);
    if (closed_ || elements_.size() >= capacity_) return false;
    elements_.push_back(std::move(element));
    if (!is_taken_) changed_.Signal();
    return true;
  }

  /// True when the caller has the turn now: nothing waits, nobody has it, the queue is not closed.
  bool TryTakeTurn() {
    MutexLock lock(mutex_);
    if (closed_ || is_taken_ || !elements_.empty()) return false;
    is_taken_ = true;
    return true;
  }

  /// Waits for an element and the turn, which the caller has then; neither once the queue is closed
  /// and empty and the last turn has ended.
  std::optional<T> PopAndTakeTurn() {
    MutexLock lock(mutex_);
    while (is_taken_ || (elements_.empty() && !closed_)) changed_.Wait(mutex_);
    if (elements_.empty()) return std::nullopt;
    is_taken_ = true;
    std::optional<T> element(std::move(elements_.front()));
    elements_.pop_front();
    return element;
  }

  void EndTurn() {
    MutexLock lock(mutex_);
    MOEBIUS_CHECK(is_taken_);
    is_taken_ = false;
    if (closed_ || !elements_.empty()) changed_.SignalAll();
  }

  /// Nothing goes in any more; what is there still comes out.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.SignalAll();
  }

 private:
  const size_t capacity_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<T> elements_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_taken_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool closed_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

}  // namespace moebius
