// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// Different sentences whose repeats are counted apart; the rest shares one count.
constexpr size_t kMaxSentences = 256;
constexpr absl::Duration kMaxClosingWait = absl::Seconds(1);
// How often a writer that waits for a full pipe looks whether the process ends.
constexpr int kPollMs = 100;

// Says of each sentence whether it may be written now. Not thread-safe.
class RepeatLimit {
 public:
  RepeatLimit(int max_repeats, absl::Duration window)
      : max_repeats_(max_repeats), window_(window) {}

  // Writes the suppressed repeats of the window that has ended into `suppressed`.
  bool Allows(absl::string_view sentence, absl::Duration now, uint64_t* suppressed) {
    Window& window = Find(sentence);
    *suppressed = 0;
    if (window.count == 0 || now - window.begin >= window_) {
      *suppressed = window.suppressed;
      window = {now, 0, 0};
    }
    if (window.count < max_repeats_) {
      ++window.count;
      return true;
    }
    ++window.suppressed;
    return false;
  }

 private:
  struct Window {
    absl::Duration begin;
    int count = 0;
    uint64_t suppressed = 0;
  };

  Window& Find(absl::string_view sentence) {
    const auto found = windows_.find(std::string(sentence));
    if (found != windows_.end()) return found->second;
    if (windows_.size() >= kMaxSentences) return others_;
    return windows_[std::string(sentence)];
  }

  const int max_repeats_;
  const absl::Duration window_;
  std::map<std::string, Window> windows_;
  Window others_;
};

}  // namespace

class Logger::Impl {
 public:
  explicit Impl(const LogOptions& options)
      : options_(options),
        repeats_(options.max_repeats, options.repeat_window),
        thread_([this] { Run(); }) {}

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

  void Log(LogLevel level, absl::string_view sentence, std::vector<LogField> fields) {
    LogLine line;
    line.level = level;
    line.time = options_.wall_clock != nullptr ? options_.wall_clock() : absl::Now();
    line.sentence = std::string(sentence);
    line.fields = std::move(fields);
    MutexLock lock(mutex_);
    uint64_t suppressed = 0;
    if (!repeats_.Allows(sentence, Clock::Monotonic().Now(), &suppressed)) {
      ++figures_.suppressed;
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
  void Run() {
    // A reader that has gone is a failed write, not the end of the process.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    MutexLock lock(mutex_);
    while (true) {
      while (queue_.empty() && !closing_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      const LogLine line = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      mutex_.Unlock();
      const bool written = Write(FormatLogLine(line, options_.name, options_.format));
      mutex_.Lock();
      writing_ = false;
      ++(written ? figures_.written : figures_.lost);
      changed_.SignalAll();
    }
  }

  bool Write(absl::string_view bytes) const {
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
      } else if (errno != EINTR && errno != EAGAIN) {
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
  std::atomic<int64_t> closing_at_{0};  // nanoseconds of the monotonic clock
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<LogLine> queue_ MOEBIUS_GUARDED_BY(mutex_);
  RepeatLimit repeats_ MOEBIUS_GUARDED_BY(mutex_);
  LogFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
  bool writing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool closing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Logger::Logger(const LogOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Logger::~Logger() = default;
void Logger::Log(LogLevel level, absl::string_view sentence, std::vector<LogField> fields) {
  if (IsOn(level)) impl_->Log(level, sentence, std::move(fields));
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
