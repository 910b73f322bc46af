// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/base/strong_id.h"

namespace moebius {

/// The parts of a layer that a trace tells of, in the order of the data.
enum class StepPhase : uint8_t {
  kAttention,  // rows are at the attention ranks
  kGate,
  kDispatch,  // the plan of who gets which rows
  kForward,   // rows are at the expert services
  kCombine,
};

inline absl::string_view StepPhaseName(StepPhase phase) {
  constexpr absl::string_view kNames[] = {"attention", "gate", "dispatch", "forward", "combine"};
  return kNames[static_cast<size_t>(phase)];
}

/// From when to when a phase took, by Clock::Monotonic().
struct PhaseInterval {
  StepPhase phase = StepPhase::kAttention;
  LayerId layer;
  int32_t round = 0;  // above 0: rows that are sent again
  absl::Duration begin;
  absl::Duration end;
};

/// Where a step that is traced notes its phases. Off, it takes nothing. Allocates only for a step
/// with more phases than any before.
class PhaseLog {
 public:
  /// Far above the phases of the deepest model: 61 layers of 5.
  static constexpr size_t kMaxIntervals = 2048;

  /// Of a new step.
  void Begin(bool is_on) {
    is_on_ = is_on;
    is_cut_ = false;
    intervals_.clear();
  }
  void Add(const PhaseInterval& interval) {
    if (!is_on_) return;
    is_cut_ = is_cut_ || intervals_.size() == kMaxIntervals;
    if (!is_cut_) intervals_.push_back(interval);
  }

  bool is_on() const { return is_on_; }
  /// There were more than it takes.
  bool is_cut() const { return is_cut_; }
  absl::Span<const PhaseInterval> intervals() const { return intervals_; }

 private:
  bool is_on_ = false;
  bool is_cut_ = false;
  std::vector<PhaseInterval> intervals_;
};

}  // namespace moebius
