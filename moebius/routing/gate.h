// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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
///   scores     s = sigmoid(logits), or softmax over all E (fp32, one fixed order of summation)
///   selection  s + bias (the bias never enters a weight)
///   groups     where G > 1: a group's score is the sum of its two best selection scores, the
///              num_kept_groups best stay, all others count as `fill`
///   choice     the k largest; every comparison, groups included, ties to the lowest id
///   weights    s of the chosen; where normalised divided by their sum in choice order (sigmoid:
///              + 1e-20, so that scores that all underflow give 0); times routed_scaling_factor
/// Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, equations 12 to 16.
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

}  // namespace moebius
