// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

#include "moebius/api/step_figures.h"

namespace moebius {

/// Where a step's time goes, as moebius_step_phase_seconds_total has it.
enum class StepStage {
  kEmbed,
  kAttention,  // waiting for the ranks included
  kNorm,
  kGate,
  kPlan,
  kExperts,  // waiting for the services included
  kCombine,
  kHead,
  kOther,  // what no phase has: the process stood still, or was not given a CPU between two
};
/// Those that have a phase: all but kOther, which is the last one.
inline constexpr size_t kNumPhaseStages = static_cast<size_t>(StepStage::kOther);
inline constexpr size_t kNumStepStages = kNumPhaseStages + 1;

inline absl::string_view StepStageName(StepStage stage) {
  constexpr absl::string_view kNames[kNumStepStages] = {
      "embed", "attention", "norm", "gate", "plan", "experts", "combine", "head", "other"};
  return kNames[static_cast<size_t>(stage)];
}

/// By stage, without kOther.
inline std::array<double, kNumPhaseStages> PhaseSeconds(const StepFigures& figures) {
  return {figures.embed_seconds,   figures.attention_seconds, figures.norm_seconds,
          figures.gate_seconds,    figures.plan_seconds,      figures.expert_seconds,
          figures.combine_seconds, figures.head_seconds};
}

}  // namespace moebius
