// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/telemetry/registry.h"

namespace moebius {

/// The answer to a probe.
struct Verdict {
  std::vector<std::string> reasons;  // why not, in words; empty: yes

  bool ok() const { return reasons.empty(); }
};

/// How far a loop has come. A loop with nothing pending is idle, which is not the same as stuck.
struct LoopProgress {
  uint64_t count = 0;  // of anything that grows while the loop works
  bool pending = false;
};

/// The state behind /startupz, /readyz and /livez, and behind the gRPC health service.
///
/// 1. Started: what the process loads before it can do anything is loaded.
/// 2. Live: no loop of its own stands still with work pending. It never depends on another process.
/// 3. Ready: started, live, not draining, no loop that works with others stands still, and every
///    readiness check has nothing to say.
///
/// Checks and progress functions are called while a probe is answered, one at a time; they must not
/// block, nor call back. Thread-safe.
class Health {
 public:
  using Check = std::function<std::vector<std::string>()>;
  using Progress = std::function<LoopProgress()>;

  /// Whom a loop waits for: nobody, so that only a new start helps where it stands still; or
  /// others too.
  enum class WaitsFor { kNobody, kOthers };

  explicit Health(const Clock& clock, absl::Duration max_standstill = absl::Seconds(30));

  /// What the process is busy with until SetStarted: "loading weights: 1.2 of 8.0 GB".
  void SetStarting(absl::string_view doing);
  void SetStarted();
  /// From now on the process is not ready, for good.
  void SetDraining();

  /// Adds sentences about what is missing. What the functions read outlives this object.
  void AddReadinessCheck(Check check);
  /// `loop` is a short name, used as a label.
  void WatchLoop(absl::string_view loop, Progress progress, WaitsFor waits_for = WaitsFor::kNobody);

  Verdict Startup() const;
  Verdict Liveness();
  Verdict Readiness();

  /// Writes moebius_ready, and moebius_background_loop_last_success_timestamp_seconds of each
  /// watched loop.
  void WriteMetrics(MetricWriter& writer);

 private:
  struct Loop {
    std::string name;
    Progress progress;
    WaitsFor waits_for = WaitsFor::kNobody;
    LoopProgress last;     // as last seen
    absl::Duration since;  // when `last` was first seen
  };

  Verdict StartupLocked() const MOEBIUS_REQUIRES(mutex_);
  Verdict LoopsLocked(bool with_others) MOEBIUS_REQUIRES(mutex_);
  Verdict ReadinessLocked() MOEBIUS_REQUIRES(mutex_);
  void LookAt(Loop& loop) MOEBIUS_REQUIRES(mutex_);

  const Clock& clock_;
  const absl::Duration max_standstill_;
  mutable Mutex mutex_;
  bool started_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool draining_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::string doing_ MOEBIUS_GUARDED_BY(mutex_) = "starting";
  std::vector<Check> checks_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<Loop> loops_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
