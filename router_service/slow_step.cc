// SPDX-License-Identifier: Apache-2.0
#include "router_service/slow_step.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_join.h"

namespace moebius {
namespace {

// A mean of about the last so many steps: it follows a load that changes.
constexpr int64_t kMeanSteps = 100;

}  // namespace

std::optional<SlowStage> StepWatch::Judge(const absl::Status& status, absl::Duration took,
                                          const StepFigures& figures) {
  std::array<double, kNumStepStages> seconds = {};
  double rest = absl::ToDoubleSeconds(took);
  const std::array<double, kNumPhaseStages> phases = PhaseSeconds(figures);
  for (size_t stage = 0; stage < kNumPhaseStages; ++stage) {
    seconds[stage] = phases[stage];
    rest -= phases[stage];
  }
  seconds[kNumPhaseStages] = std::max(0.0, rest);
  const auto rows = static_cast<uint64_t>(std::max<int64_t>(1, figures.num_rows));
  const size_t size =
      std::min<size_t>(static_cast<size_t>(std::bit_width(rows)) - 1, kNumSizes - 1);
  Usual& usual = usual_[size];
  if (took <= limit_) {
    if (status.ok()) Learn(seconds, &usual);
    return std::nullopt;
  }
  const auto longest = std::max_element(seconds.begin(), seconds.end());
  const auto index = static_cast<size_t>(longest - seconds.begin());
  SlowStage slow;
  slow.stage = static_cast<StepStage>(index);
  slow.seconds = *longest;
  if (usual.num_steps > 0) slow.usual_seconds = usual.seconds[index];
  return slow;
}

void StepWatch::Learn(const std::array<double, kNumStepStages>& seconds, Usual* usual) const {
  usual->num_steps = std::min(usual->num_steps + 1, kMeanSteps);
  for (size_t stage = 0; stage < kNumStepStages; ++stage) {
    usual->seconds[stage] +=
        (seconds[stage] - usual->seconds[stage]) / static_cast<double>(usual->num_steps);
  }
}

void WriteLogLine(const SlowStep& slow, Logger& logger) {
  std::vector<LogField> fields = {{"step", slow.step}, {"attempt", slow.attempt}};
  fields.emplace_back("rows", slow.num_rows);
  fields.emplace_back("seconds", absl::ToDoubleSeconds(slow.took));
  fields.emplace_back("stage", StepStageName(slow.slowest.stage));
  fields.emplace_back("stage_seconds", slow.slowest.seconds);
  if (slow.slowest.usual_seconds.has_value()) {
    fields.emplace_back("usual_stage_seconds", *slow.slowest.usual_seconds);
  }
  if (slow.expert_service.has_value()) {
    fields.emplace_back("expert_slot", slow.expert_service->service.value());
    fields.emplace_back("expert_slot_seconds", absl::ToDoubleSeconds(slow.expert_service->wait));
  }
  if (!slow.status.ok()) fields.emplace_back("status", slow.status);
  fields.emplace_back("requests", slow.num_requests);
  fields.emplace_back("request_ids", absl::StrJoin(slow.request_ids, ","));
  logger.Log(LogLevel::kWarning, "a step was slow", std::move(fields));
}

}  // namespace moebius
