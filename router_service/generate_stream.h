// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/api/generate.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// The bounded queue between a lead (the writer) and the reader of a request. A full queue pauses
/// the session, never the lead.
///
/// Others may follow: each has a stream of its own, with the same events from the first on, and
/// slows nobody down. The request goes on as long as anybody reads. Thread-safe.
class GenerateStream : public std::enable_shared_from_this<GenerateStream> {
 public:
  /// How many may follow one stream at a time.
  static constexpr size_t kMaxFollowers = 16;

  /// `wake_writer` is called, outside the lock, when a full queue gets room and on Cancel. Events
  /// are kept for those who follow as long as there are at most `max_history` of them.
  GenerateStream(size_t max_events, std::function<void()> wake_writer, size_t max_history = 0);

  /// The reader's side. Next waits for an event; an empty optional means that the stream has ended
  /// (then `status` is final) or that `timeout` has passed (then `ended` is false).
  std::optional<GenerateEvent> Next(absl::Duration timeout = absl::InfiniteDuration());
  bool ended() const;
  /// OK after a last event; else why the request failed.
  absl::Status status() const;
  /// This reader has gone. When it was the last one the request ends within a step; a last event
  /// with finish_reason abort follows.
  void Cancel() MOEBIUS_EXCLUDES(mutex_);
  /// A stream with the same events. One that leaves more than the history's bound untaken ends with
  /// RESOURCE_EXHAUSTED. Null when the first events are not kept any more, when nobody reads, or
  /// when kMaxFollowers follow.
  std::shared_ptr<GenerateStream> Follow() MOEBIUS_EXCLUDES(mutex_);
  /// For a reader that takes events as they come instead of waiting in Next: `on_news` is called
  /// once now and after each Push and End, on the writer's thread, and must only leave word. Null
  /// takes it back: it is not running when this returns. Not from within it.
  void SetReader(std::function<void()> on_news) MOEBIUS_EXCLUDES(reader_mutex_);

  /// The writer's side.
  bool HasRoom() const;
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  /// The last event is taken even when the queue is full.
  void Push(const GenerateEvent& event) MOEBIUS_EXCLUDES(reader_mutex_);
  /// No event follows.
  void End(const absl::Status& status) MOEBIUS_EXCLUDES(reader_mutex_);

 private:
  using Followers = std::vector<std::shared_ptr<GenerateStream>>;

  void TellReader() MOEBIUS_EXCLUDES(reader_mutex_);
  bool HasRoomLocked() const MOEBIUS_REQUIRES(mutex_);
  // Those that are there; forgets the others.
  Followers TakeStock() MOEBIUS_REQUIRES(mutex_);
  void Lose(const GenerateStream* follower) MOEBIUS_EXCLUDES(mutex_);
  // Of a stream that follows.
  void PushToFollower(const GenerateEvent& event);
  void EndFollower(const absl::Status& status);

  const size_t max_events_;
  const std::function<void()> wake_writer_;
  const size_t max_history_;
  std::shared_ptr<GenerateStream> leader_;  // of one that follows; set before it is handed out
  std::atomic<bool> cancelled_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<GenerateEvent> events_ MOEBIUS_GUARDED_BY(mutex_);
  bool ended_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool left_ MOEBIUS_GUARDED_BY(mutex_) = false;  // its own reader has gone, others follow
  bool keeps_history_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<GenerateEvent> history_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<GenerateStream>> followers_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Status status_ MOEBIUS_GUARDED_BY(mutex_);
  Mutex reader_mutex_;  // held while on_news_ runs; never together with mutex_
  std::function<void()> on_news_ MOEBIUS_GUARDED_BY(reader_mutex_);
};

}  // namespace moebius
