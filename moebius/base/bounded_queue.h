// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"

#include "moebius/base/check.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// A queue between threads that holds at most `capacity` elements. What does not fit is the
/// caller's to refuse: nothing ever waits for room.
///
/// Thread-safe. Elements leave in the order in which they came.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { MOEBIUS_CHECK_GE(capacity, 1u); }

  /// False, with `element` untouched, when the queue is full or closed.
  bool TryPush(T& element) {
    MutexLock lock(mutex_);
    if (closed_ || elements_.size() >= capacity_) return false;
    elements_.push_back(std::move(element));
    changed_.Signal();
    return true;
  }

  /// The oldest element, or nothing when there is none now.
  std::optional<T> TryPop() {
    MutexLock lock(mutex_);
    return Take();
  }

  /// Waits for an element; nothing once the queue is closed and empty.
  std::optional<T> Pop() {
    MutexLock lock(mutex_);
    while (elements_.empty() && !closed_) changed_.Wait(mutex_);
    return Take();
  }

  /// Nothing goes in any more; what is there still comes out. Wakes all that wait.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.SignalAll();
  }

  size_t size() const {
    MutexLock lock(mutex_);
    return elements_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  std::optional<T> Take() MOEBIUS_REQUIRES(mutex_) {
    if (elements_.empty()) return std::nullopt;
    std::optional<T> element(std::move(elements_.front()));
    elements_.pop_front();
    return element;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<T> elements_ MOEBIUS_GUARDED_BY(mutex_);
  bool closed_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

}  // namespace moebius
