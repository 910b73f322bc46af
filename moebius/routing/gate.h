// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/base/gate_config.h"
#include "moebius/routing/assignments.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// What a call of SelectExperts counted.
struct GateCounts {
  int64_t refused_rows = 0;  // rows with a logit that is not finite
  /// Rows whose set of experts the other group fill would change.
  int64_t group_fill_mismatches = 0;

  void Add(const GateCounts& other) {
    refused_rows += other.refused_rows;
    group_fill_mismatches += other.group_fill_mismatches;
  }
};

/// Whether the gate can be computed: counts within assignments.h's bounds, groups that divide E,
/// and k candidates in the kept groups. INVALID_ARGUMENT names the field.
absl::Status ValidateGate(const GateConfig& config);

/// Chooses k experts per row, row by row:
///   scores     s = sigmoid(logits), or softmax over all E (fp32, one fixed order of summation), or
///              the logits themselves where the choice is by logit
///   selection  s + bias (the bias never enters a weight)
///   groups     where G > 1: a group's score is the sum of its two best selection scores, the
///              num_kept_groups best stay, all others count as `fill`
///   choice     the k largest; every comparison, groups included, ties to the lowest id
///   weights    s of the chosen, or their sigmoid where the choice is by logit; where normalised
///              divided by their sum in choice order + 1e-20, so that scores that all underflow
///              give 0; or the softmax over the chosen; times routed_scaling_factor
/// A bias that is part of the logits comes before, weights on an expert's input after
/// (gate_sides.h). Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, equations 12 to 16.
///
/// `logits` fp32 [T, E]; `bias` fp32 [E], empty without a correction bias. A row with a logit that
/// is not finite is refused: listed in assignments->refused_rows, chosen for nothing, and no other
/// row changes. `assignments` is Reset to [T, k]; `counts` is overwritten. Allocates only where
/// `assignments` grows. The configuration must be valid (CHECK of the shapes).
/// Runs in the executor's float environment. Thread-safe.
void SelectExperts(const GateConfig& config, GroupFill fill, FloatRows logits,
                   absl::Span<const float> bias, Assignments* assignments, GateCounts* counts);

/// The same over the executor's threads where there are rows enough; same bits. On an executor
/// thread.
void SelectExperts(Executor& executor, const GateConfig& config, GroupFill fill, FloatRows logits,
                   absl::Span<const float> bias, Assignments* assignments, GateCounts* counts);

/// Checks what a gate chose, from scratch and slowly. INTERNAL names the broken rule and the row:
///  G1 a row is refused exactly where a logit is not finite; it then chooses nobody and weighs 0
///  G2 ids are in [0, E) and distinct within a row
///  G3 with fill -inf they are of the kept groups
///  G4 choices come in the order of selection, ties to the lowest id, and nobody better is left out
///  G5 weights are finite and those of the definition, from scores without the bias
/// Runs in the executor's float environment.
absl::Status ValidateAssignments(const GateConfig& config, GroupFill fill, FloatRows logits,
                                 absl::Span<const float> bias, const Assignments& assignments);

/// The scores [E] of one row, before any bias. False, and nothing written, for a row with a NaN or
/// an infinity. Runs in the executor's float environment. Thread-safe.
bool ScoreRow(const GateConfig& config, absl::Span<const float> logits, absl::Span<float> scores);

/// How close a row's choice was: its last expert and the best of the candidates that were left out.
struct RunnerUp {
  int32_t chosen_expert = 0;
  int32_t next_expert = 0;
  float gap = 0;  // of their selection scores, >= 0
};

/// Nothing for a refused row, and where every candidate is chosen. The row as SelectExperts takes
/// it. Runs in the executor's float environment. Thread-safe.
std::optional<RunnerUp> FindRunnerUp(const GateConfig& config, GroupFill fill,
                                     absl::Span<const float> logits, absl::Span<const float> bias);

/// All candidates of one row, best first, with the weight that each would have beside the row's own
/// choices: its score over the divisor that the gate had. The first k are the gate's choice (fill
/// -inf). Candidates are the experts of the kept groups. Reused from row to row; not thread-safe.
class CandidateRanking {
 public:
  struct Candidate {
    int32_t expert = 0;
    float weight = 0;
  };

  /// A row without NaN or infinity. Runs in the executor's float environment.
  void Rank(const GateConfig& config, absl::Span<const float> logits, absl::Span<const float> bias);

  absl::Span<const Candidate> all() const { return candidates_; }

 private:
  std::vector<Candidate> candidates_;
};

}  // namespace moebius
