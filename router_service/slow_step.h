// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/telemetry/log.h"
#include "router_service/ports.h"
#include "router_service/step_stage.h"

namespace moebius {

/// The stage that most of a slow step's time went to.
struct SlowStage {
  StepStage stage = StepStage::kOther;
  double seconds = 0;
  /// Its mean in the steps before of about as many rows that were not slow; nothing where there was
  /// none.
  std::optional<double> usual_seconds;
};

/// Says which steps are slow, and where their time went. Steps are compared with those of as many
/// rows, up to a factor of two. Pure: times come in as arguments. Allocates nothing.
///
/// Not thread-safe.
class StepWatch {
 public:
  explicit StepWatch(absl::Duration limit) : limit_(limit) {}

  /// An attempt at a step that took so long, done or failed: nothing when that is not more than the
  /// limit. Failed ones are judged, and not learned from.
  std::optional<SlowStage> Judge(const absl::Status& status, absl::Duration took,
                                 const StepFigures& figures);

 private:
  // Steps of 2^i to 2^(i+1) - 1 rows; the last one has all that are larger.
  static constexpr size_t kNumSizes = 17;
  struct Usual {
    int64_t num_steps = 0;
    std::array<double, kNumStepStages> seconds = {};  // means
  };
  void Learn(const std::array<double, kNumStepStages>& seconds, Usual* usual) const;

  const absl::Duration limit_;
  std::array<Usual, kNumSizes> usual_;
};

/// What there is to say of a slow step.
struct SlowStep {
  static constexpr size_t kMaxRequestIds = 8;

  uint64_t step = 0;
  uint64_t attempt = 0;
  absl::Status status;
  int64_t num_rows = 0;
  absl::Duration took;
  SlowStage slowest;
  std::optional<ServiceWait> expert_service;  // of slowest.stage kExperts, where it is known
  int64_t num_requests = 0;
  std::vector<std::string> request_ids;  // of the first kMaxRequestIds of them
};

/// Hears of slow steps, on the stepping thread: never waits.
using SlowStepNotice = std::function<void(const SlowStep&)>;

/// A line of the log; of many the logger writes some and counts the rest.
void WriteLogLine(const SlowStep& slow, Logger& logger);

}  // namespace moebius
