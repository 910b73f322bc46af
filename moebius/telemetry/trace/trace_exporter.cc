// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/trace_exporter.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// Beyond the limit of a stop, for a thread that is about to end.
constexpr absl::Duration kStopGrace = absl::Milliseconds(100);

absl::Duration Now() { return Clock::Monotonic().Now(); }

// Codes with which OTLP says that the same request may do later.
bool MeansLater(int code) { return code == 429 || code == 502 || code == 503 || code == 504; }

absl::Status StatusOfCode(int code) {
  if (code >= 200 && code < 300) return absl::OkStatus();
  const std::string words = absl::StrCat("the collector answered ", code);
  return MeansLater(code) ? absl::UnavailableError(words) : absl::FailedPreconditionError(words);
}

}  // namespace

class TraceExporter::Shared {
 public:
  explicit Shared(const TraceExporterOptions& options) : options_(options) {}

  void Take(std::vector<TraceSpan> spans) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (stopping_) {
      figures_.stopped += spans.size();
    } else if (queue_.size() + spans.size() > options_.max_queued_spans) {
      figures_.queue_full += spans.size();
    } else {
      if (queue_.empty()) oldest_at_ = Now();
      std::move(spans.begin(), spans.end(), std::back_inserter(queue_));
      if (queue_.size() >= options_.max_batch_spans || !is_waiting_for_more_) changed_.SignalAll();
    }
  }

  TraceFigures figures() const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return figures_;
  }

  void Run() MOEBIUS_EXCLUDES(mutex_) {
    std::vector<TraceSpan> batch;
    while (NextBatch(&batch)) Send(batch);
    MutexLock lock(mutex_);
    done_ = true;
    changed_.SignalAll();
  }

  // False when the thread did not end in time: it must be left.
  bool Stop() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    stopping_ = true;
    stop_at_ = Now() + options_.stop_timeout;
    changed_.SignalAll();
    const absl::Duration end = stop_at_ + kStopGrace;
    while (!done_ && Now() < end) changed_.WaitWithTimeout(mutex_, end - Now());
    abandoned_ = !done_;
    return done_;
  }

 private:
  // The next spans to send; false when there will be none.
  bool NextBatch(std::vector<TraceSpan>* batch) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
    is_waiting_for_more_ = true;
    while (!stopping_ && queue_.size() < options_.max_batch_spans) {
      const absl::Duration left = oldest_at_ + options_.max_wait - Now();
      if (left <= absl::ZeroDuration()) break;
      changed_.WaitWithTimeout(mutex_, left);
    }
    is_waiting_for_more_ = false;
    TellOfFullQueue();
    if (stopping_ && Now() >= stop_at_) {
      figures_.stopped += queue_.size();
      queue_.clear();
    }
    const size_t count = std::min(queue_.size(), options_.max_batch_spans);
    const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(count);
    batch->assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
    queue_.erase(queue_.begin(), end);
    oldest_at_ = Now();
    return count > 0;
  }

  void Send(absl::Span<const TraceSpan> batch) MOEBIUS_EXCLUDES(mutex_) {
    const std::string body = FormatOtlpJson(options_.resource, batch);
    absl::Status status;
    for (int tries = 1;; ++tries) {
      const absl::Duration end = Now() + options_.post_timeout;
      const absl::StatusOr<int> code =
          PostHttp(options_.target, "application/json", body, [this, end] {
            MutexLock lock(mutex_);
            return stopping_ ? std::min(end, stop_at_) : end;
          });
      status = code.ok() ? StatusOfCode(*code) : code.status();
      if (status.ok() || absl::IsFailedPrecondition(status)) break;
      if (tries >= options_.max_tries || !Pause(options_.retry_pause * (1 << (tries - 1)))) break;
    }
    Count(status, batch.size());
  }

  // Between two tries; false when the process ends.
  bool Pause(absl::Duration pause) MOEBIUS_EXCLUDES(mutex_) {
    const absl::Duration end = Now() + pause;
    MutexLock lock(mutex_);
    while (!stopping_ && Now() < end) changed_.WaitWithTimeout(mutex_, end - Now());
    return !stopping_;
  }

  void Count(const absl::Status& status, uint64_t num_spans) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (status.ok()) {
      figures_.exported += num_spans;
      return;
    }
    const bool refused = absl::IsFailedPrecondition(status);
    (refused ? figures_.refused : stopping_ ? figures_.stopped : figures_.unreachable) += num_spans;
    Tell(refused ? "refused" : "unreachable", num_spans, status);
  }

  void TellOfFullQueue() MOEBIUS_REQUIRES(mutex_) {
    const uint64_t told = std::exchange(told_queue_full_, figures_.queue_full);
    if (told == figures_.queue_full) return;
    Tell("queue_full", figures_.queue_full - told, absl::OkStatus());
  }

  // Of the same sentence a logger writes some and counts the rest; it never waits.
  void Tell(absl::string_view reason, uint64_t num_spans, const absl::Status& status)
      MOEBIUS_REQUIRES(mutex_) {
    if (options_.logger == nullptr || abandoned_) return;
    options_.logger->Warning(
        "trace spans were dropped",
        {{"reason", reason},
         {"spans", num_spans},
         {"collector", absl::StrCat(options_.target.host, ":", options_.target.port)},
         {"status", status}});
  }

  const TraceExporterOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<TraceSpan> queue_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Duration oldest_at_ MOEBIUS_GUARDED_BY(mutex_);  // when the queue began to fill
  bool is_waiting_for_more_ MOEBIUS_GUARDED_BY(mutex_) = false;
  TraceFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t told_queue_full_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Duration stop_at_ MOEBIUS_GUARDED_BY(mutex_);
  bool done_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool abandoned_ MOEBIUS_GUARDED_BY(mutex_) = false;  // the logger may be gone
};

TraceExporter::TraceExporter(const TraceExporterOptions& options)
    : shared_(std::make_shared<Shared>(options)), thread_([shared = shared_] { shared->Run(); }) {}

TraceExporter::~TraceExporter() {
  if (shared_->Stop()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void TraceExporter::Take(std::vector<TraceSpan> spans) { shared_->Take(std::move(spans)); }
TraceFigures TraceExporter::figures() const { return shared_->figures(); }

void WriteTraceMetrics(const TraceFigures& figures, MetricWriter& writer) {
  writer.WriteCounter(Metric::kTraceSpansExported, static_cast<double>(figures.exported));
  const std::pair<absl::string_view, uint64_t> dropped[] = {{"queue_full", figures.queue_full},
                                                            {"unreachable", figures.unreachable},
                                                            {"refused", figures.refused},
                                                            {"stopped", figures.stopped}};
  for (const auto& [reason, count] : dropped) {
    writer.WriteCounter(Metric::kTraceSpansDropped, static_cast<double>(count), {reason});
  }
}

}  // namespace moebius
