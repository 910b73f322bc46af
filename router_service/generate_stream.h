// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "router_service/generate.h"

namespace moebius {

/// The bounded queue between a lead (the writer) and the one reader of a request. A full queue
/// pauses the session, never the lead. Thread-safe.
class GenerateStream {
 public:
  /// `wake_writer` is called, outside the lock, when a full queue gets room and on Cancel.
  GenerateStream(size_t max_events, std::function<void()> wake_writer);

  /// The reader's side. Next waits for an event; an empty optional means that the stream has ended
  /// (then `status` is final) or that `timeout` has passed (then `ended` is false).
  std::optional<GenerateEvent> Next(absl::Duration timeout = absl::InfiniteDuration());
  bool ended() const;
  /// OK after a last event; else why the request failed.
  absl::Status status() const;
  /// The request ends within a step; a last event with finish_reason abort follows.
  void Cancel();

  /// The writer's side.
  bool HasRoom() const;
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  /// The last event is taken even when the queue is full.
  void Push(GenerateEvent event);
  /// No event follows.
  void End(absl::Status status);

 private:
  const size_t max_events_;
  const std::function<void()> wake_writer_;
  std::atomic<bool> cancelled_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<GenerateEvent> events_ MOEBIUS_GUARDED_BY(mutex_);
  bool ended_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Status status_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
