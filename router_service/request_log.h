// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/api/router_info.h"
#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/telemetry/log.h"

namespace moebius {

/// What there is to say of the requests that run and of the last ones that ended, by id. The lead
/// writes, whoever wants to know reads. Thread-safe.
class RequestLog {
 public:
  /// Of ended requests; running ones are bounded by the lead.
  explicit RequestLog(size_t max_ended = 1024, const Clock& clock = Clock::Monotonic())
      : max_ended_(max_ended), clock_(clock) {}

  /// Hears of each request that ended, without a lock, on the thread that ended it: never waits.
  /// Before the first request.
  void SetOnEnded(std::function<void(const Explanation&)> on_ended) {
    on_ended_ = std::move(on_ended);
  }

  /// `trace_id`: 32 hexadecimal digits; empty: none. `caller` as GenerateRequest has it.
  void OnQueued(const std::string& request_id, const std::string& trace_id = "",
                const std::string& caller = "") MOEBIUS_EXCLUDES(mutex_);
  /// Of a queued or running request; ids and logarithms of `event` are not kept.
  void OnProgress(const GenerateEvent& event) MOEBIUS_EXCLUDES(mutex_);
  /// `status` OK: the last event came before. Forgets the oldest ended one beyond the bound.
  void OnEnded(const std::string& request_id, const absl::Status& status) MOEBIUS_EXCLUDES(mutex_);

  /// NOT_FOUND: never seen, forgotten since, or of another caller than `asker`, in the same words.
  /// Nothing for `asker`: whoever it is of.
  absl::StatusOr<Explanation> Explain(const std::string& request_id,
                                      const std::optional<std::string>& asker = std::nullopt) const
      MOEBIUS_EXCLUDES(mutex_);
  /// Whether an id that ended is still known.
  bool HasEnded(const std::string& request_id) const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Record {
    Explanation explanation;
    absl::Duration queued_at;
    bool ended = false;
  };

  std::optional<Explanation> NoteEnd(const std::string& request_id, const absl::Status& status)
      MOEBIUS_EXCLUDES(mutex_);

  const size_t max_ended_;
  std::function<void(const Explanation&)> on_ended_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<std::string, Record> records_ MOEBIUS_GUARDED_BY(mutex_);
  std::deque<std::string> ended_ MOEBIUS_GUARDED_BY(mutex_);  // oldest first
};

/// One line of the log for a request that ended: its id, who asked, how it ended, tokens and time,
/// and its trace_id where it has one. Of many of one caller the logger writes some and counts the
/// rest.
void WriteLogLine(const Explanation& ended, Logger& logger);

}  // namespace moebius
