// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/health.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace moebius {

Health::Health(const Clock& clock, absl::Duration max_standstill)
    : clock_(clock), max_standstill_(max_standstill) {}

void Health::SetStarting(absl::string_view doing) {
  MutexLock lock(mutex_);
  doing_ = std::string(doing);
}

void Health::SetStarted() {
  MutexLock lock(mutex_);
  started_ = true;
}

void Health::SetDraining() {
  MutexLock lock(mutex_);
  draining_ = true;
}

void Health::AddReadinessCheck(Check check) {
  MutexLock lock(mutex_);
  checks_.push_back(std::move(check));
}

void Health::WatchLoop(absl::string_view loop, Progress progress, WaitsFor waits_for) {
  MutexLock lock(mutex_);
  loops_.push_back({std::string(loop), std::move(progress), waits_for});
  LookAt(loops_.back());
}

Verdict Health::Startup() const {
  MutexLock lock(mutex_);
  return StartupLocked();
}

Verdict Health::Liveness() {
  MutexLock lock(mutex_);
  return LoopsLocked(false);
}

Verdict Health::Readiness() {
  MutexLock lock(mutex_);
  return ReadinessLocked();
}

Verdict Health::ReadinessLocked() {
  if (draining_) return {{"draining: no new work is taken"}};
  Verdict verdict = StartupLocked();
  if (!verdict.ok()) return verdict;
  verdict = LoopsLocked(true);
  for (const Check& check : checks_) {
    std::vector<std::string> missing = check();
    verdict.reasons.insert(verdict.reasons.end(), std::make_move_iterator(missing.begin()),
                           std::make_move_iterator(missing.end()));
  }
  return verdict;
}

void Health::WriteMetrics(MetricWriter& writer) {
  MutexLock lock(mutex_);
  writer.WriteGauge(Metric::kReady, ReadinessLocked().ok() ? 1 : 0);
  const absl::Duration now = clock_.Now();
  for (Loop& loop : loops_) {
    LookAt(loop);
    const double seconds = absl::ToUnixMicros(absl::Now() - (now - loop.since)) / 1e6;
    writer.WriteGauge(Metric::kLoopLastSuccess, seconds, {loop.name});
  }
}

Verdict Health::StartupLocked() const {
  if (started_) return {};
  return {{doing_}};
}

Verdict Health::LoopsLocked(bool with_others) {
  Verdict verdict;
  for (Loop& loop : loops_) {
    if (loop.waits_for == WaitsFor::kOthers && !with_others) continue;
    LookAt(loop);
    const absl::Duration standstill = clock_.Now() - loop.since;
    if (standstill < max_standstill_) continue;
    verdict.reasons.push_back(absl::StrCat("the ", loop.name,
                                           " loop has work and made no progress for ",
                                           absl::ToInt64Seconds(standstill), " s"));
  }
  return verdict;
}

// A loop that had work at two looks, with one count, was not idle in between: to become idle it
// would have had to finish something.
void Health::LookAt(Loop& loop) {
  const LoopProgress progress = loop.progress();
  const bool stood_still =
      progress.pending && loop.last.pending && progress.count == loop.last.count;
  if (!stood_still) loop.since = clock_.Now();
  loop.last = progress;
}

}  // namespace moebius
