// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/telemetry/log_limit.h"
#include "moebius/telemetry/log_line.h"
#include "moebius/telemetry/registry.h"

namespace moebius {

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  std::string name;  // of the process: "expert-2"
  int fd = 2;        // borrowed
  size_t max_queued_lines = 1024;
  /// A sentence that is said more often than this in `repeat_window` is counted, not written; of a
  /// peer, if the line has one. Once in each such window a line says how many there were.
  int max_repeats = 10;
  absl::Duration repeat_window = absl::Minutes(1);
  absl::Time (*wall_clock)() = nullptr;  // null: absl::Now
};

/// What became of lines.
struct LogFigures {
  uint64_t written = 0;     // those about lines that were not, too
  uint64_t suppressed = 0;  // repeats
  uint64_t lost = 0;        // the queue was full, or the descriptor took nothing
};

/// Lines of text or JSON, written by a thread of its own: who logs never waits for a disk, a pipe
/// or a terminal. A line has at most kMaxLogLineBytes and is written by one call, so that processes
/// that share a pipe do not mix theirs.
///
/// Log where something is decided, once, in a sentence that is the same each time; what differs
/// goes into fields. Repeats are known by the sentence, or by what LogOf is told. What others can
/// provoke is said with LogOf and their address: see LogLimit for what holds then.
///
/// Thread-safe. Destruction writes what is queued, but waits for a full pipe at most one second.
class Logger {
 public:
  explicit Logger(const LogOptions& options);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  void Debug(absl::string_view sentence, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kDebug, sentence, fields);
  }
  void Info(absl::string_view sentence, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kInfo, sentence, fields);
  }
  void Warning(absl::string_view sentence, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kWarning, sentence, fields);
  }
  void Error(absl::string_view sentence, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kError, sentence, fields);
  }
  void Log(LogLevel level, absl::string_view sentence, std::initializer_list<LogField> fields) {
    if (IsOn(level)) Log(level, sentence, std::vector<LogField>(fields));
  }
  void Log(LogLevel level, absl::string_view sentence, std::vector<LogField> fields) {
    LogOf(LogSource(), level, sentence, std::move(fields));
  }
  /// A line that counts against the budget of its source.
  void LogOf(LogSource source, LogLevel level, absl::string_view sentence,
             std::vector<LogField> fields);

  bool IsOn(LogLevel level) const;
  /// Waits until everything that was logged before is written or lost; false after `timeout`.
  bool Flush(absl::Duration timeout);

  LogFigures figures() const;
  void WriteMetrics(MetricWriter& writer) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
