// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

constexpr absl::Duration kMaxClosingWait = absl::Seconds(1);
constexpr absl::Duration kLongWait = absl::Hours(1);  // for something to say
// How often a writer that waits for a full pipe looks whether the process ends.
constexpr int kPollMs = 100;

LogLimits LimitsOf(const LogOptions& options) {
  LogLimits limits;
  limits.max_lines = options.max_repeats;
  limits.window = options.repeat_window;
  return limits;
}

}  // namespace

class Logger::Impl {
 public:
  explicit Impl(const LogOptions& options)
      : options_(options), limit_(LimitsOf(options)), thread_([this] { Run(); }) {}

  ~Impl() {
    {
      MutexLock lock(mutex_);
      closing_ = true;
      changed_.SignalAll();
    }
    closing_at_.store(absl::ToInt64Nanoseconds(Clock::Monotonic().Now()));
    thread_.join();
  }

  bool IsOn(LogLevel level) const { return level >= options_.level; }

  void LogOf(LogSource source, LogLevel level, absl::string_view sentence,
             std::vector<LogField> fields) MOEBIUS_EXCLUDES(mutex_) {
    LogLine line = MakeLine(level, sentence, std::move(fields));
    if (source.kind.empty()) source.kind = line.sentence;
    MutexLock lock(mutex_);
    uint64_t suppressed = 0;
    if (!limit_.Allows(source, Clock::Monotonic().Now(), &suppressed)) {
      ++figures_.suppressed;
      // The first of a window: the thread has to know when to say so.
      if (figures_.suppressed == told_suppressed_ + 1) changed_.SignalAll();
      return;
    }
    if (suppressed != 0) line.fields.emplace_back("suppressed_repeats", suppressed);
    if (queue_.size() >= options_.max_queued_lines) {
      ++figures_.lost;
      return;
    }
    queue_.push_back(std::move(line));
    changed_.SignalAll();
  }

  bool Flush(absl::Duration timeout) {
    const absl::Duration until = Clock::Monotonic().Now() + timeout;
    MutexLock lock(mutex_);
    while (!queue_.empty() || writing_) {
      const absl::Duration left = until - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(mutex_, left);
    }
    return true;
  }

  LogFigures figures() const {
    MutexLock lock(mutex_);
    return figures_;
  }

 private:
  LogLine MakeLine(LogLevel level, absl::string_view sentence, std::vector<LogField> fields) const {
    LogLine line;
    line.level = level;
    line.time = options_.wall_clock != nullptr ? options_.wall_clock() : absl::Now();
    line.sentence = std::string(sentence);
    line.fields = std::move(fields);
    return line;
  }

  // Until there is one, or there will be none.
  void WaitForLines() MOEBIUS_REQUIRES(mutex_) {
    while (true) {
      const absl::Duration now = Clock::Monotonic().Now();
      TellHeldBack(closing_ ? absl::InfiniteDuration() : now);
      if (!queue_.empty() || closing_) return;
      changed_.WaitWithTimeout(mutex_, std::min(limit_.due() - now, kLongWait));
    }
  }

  void TellHeldBack(absl::Duration now) MOEBIUS_REQUIRES(mutex_) {
    const std::optional<LogHeldBack> held_back = limit_.TakeHeldBack(now);
    if (!held_back.has_value() || held_back->lines == 0) return;
    told_suppressed_ = figures_.suppressed;
    queue_.push_back(MakeLine(LogLevel::kWarning, "lines of this log were held back",
                              {{"lines", held_back->lines},
                               {"peers", held_back->peers},
                               {"most_of", held_back->most_of},
                               {"most_lines", held_back->most_lines}}));
  }

  void Run() {
    // A reader that has gone is a failed write, not the end of the process.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    MutexLock lock(mutex_);
    while (true) {
      WaitForLines();
      if (queue_.empty()) return;
      const LogLine line = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      mutex_.Unlock();
      const bool written = WriteLine(FormatLogLine(line, options_.name, options_.format));
      mutex_.Lock();
      writing_ = false;
      ++(written ? figures_.written : figures_.lost);
      changed_.SignalAll();
    }
  }

  // A disk that was full has the begin of a line, which the next one must not be taken for.
  bool WriteLine(absl::string_view line) {
    if (is_cut_ && !Write("\n")) return false;
    is_cut_ = false;
    return Write(line);
  }

  bool Write(absl::string_view bytes) {
    bool has_begun = false;
    while (!bytes.empty()) {
      // A pipe that is ready takes a whole line, so that write never waits.
      pollfd polled = {options_.fd, POLLOUT, 0};
      const bool overdue = IsOverdue();
      if (poll(&polled, 1, overdue ? 0 : kPollMs) == 0) {
        if (overdue) return false;
        continue;
      }
      const ssize_t count = write(options_.fd, bytes.data(), bytes.size());
      if (count >= 0) {
        bytes.remove_prefix(static_cast<size_t>(count));
        has_begun = has_begun || count > 0;
      } else if (errno != EINTR && errno != EAGAIN) {
        is_cut_ = is_cut_ || has_begun;
        return false;
      }
    }
    return true;
  }

  bool IsOverdue() const {
    const int64_t closing_at = closing_at_.load();
    return closing_at != 0 &&
           Clock::Monotonic().Now() - absl::Nanoseconds(closing_at) > kMaxClosingWait;
  }

  const LogOptions options_;
  bool is_cut_ = false;                 // the last byte written ended no line; of the thread
  std::atomic<int64_t> closing_at_{0};  // nanoseconds of the monotonic clock
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<LogLine> queue_ MOEBIUS_GUARDED_BY(mutex_);
  LogLimit limit_ MOEBIUS_GUARDED_BY(mutex_);
  LogFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t told_suppressed_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool writing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool closing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Logger::Logger(const LogOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Logger::~Logger() = default;
void Logger::LogOf(LogSource source, LogLevel level, absl::string_view sentence,
                   std::vector<LogField> fields) {
  if (IsOn(level)) impl_->LogOf(std::move(source), level, sentence, std::move(fields));
}
bool Logger::IsOn(LogLevel level) const { return impl_->IsOn(level); }
bool Logger::Flush(absl::Duration timeout) { return impl_->Flush(timeout); }
LogFigures Logger::figures() const { return impl_->figures(); }

void Logger::WriteMetrics(MetricWriter& writer) const {
  const LogFigures now = figures();
  writer.WriteCounter(Metric::kLogLines, static_cast<double>(now.written), {"written"});
  writer.WriteCounter(Metric::kLogLines, static_cast<double>(now.suppressed), {"suppressed"});
  writer.WriteCounter(Metric::kLogLines, static_cast<double>(now.lost), {"lost"});
}

}  // namespace moebius
