// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

#include "moebius/attention/cost_model.h"
#include "moebius/attention/step_plan.h"

namespace moebius {

/// How the lead's side chooses each session's method. A value.
struct MethodRule {
  std::optional<AttentionMethod> forced;  // nothing: the cost model's choice
  AttentionHeads heads;
  /// Of a rank. Where nothing is known: a small CPU host on a fast network.
  RankRates rates{.flops = 100e9, .bandwidth = 1e9, .latency = 100e-6};
  int32_t num_ranks = 1;
  int64_t span = 1024;
  int64_t key_block = 128;
  AttentionSum sum = AttentionSum::kCanonical;
  AttentionLayout layout = AttentionLayout::kZigzag;
};

/// INVALID_ARGUMENT for what cannot be forced: local on several ranks, whose spans are not all of
/// one; 2d on a number of ranks that has no divisor.
absl::Status ValidateMethodRule(const MethodRule& rule);

/// The rank that owns a session's first span: by its id, so that short sessions spread. Always rank
/// 0 under the per-degree sum where rows may go by heads: a rank cuts its own keys into blocks
/// otherwise than keys that come, and with heads it is the rank, not the row's owner, that decides
/// which are its own. So no bit follows the id. Pure.
int32_t FirstRankOf(const MethodRule& rule, SessionId session);

/// Ranks of a group under 2d: the divisor of N below it that is nearest its root, rounded down; 1
/// where there is none.
int32_t GroupSizeOf2d(int32_t num_ranks);

/// Sets method and ulysses_ranks of every session with prompt rows in the step. Where the cost
/// model says local the session keeps to the span rule, which puts a prompt of one span on one
/// rank: ring-pass-kv with nothing to send. Groups of one step have one size, that of the first
/// session that shares heads; others that would need another take ring-pass-kv. Pure.
void SetMethods(const MethodRule& rule, StepPlan& plan);

}  // namespace moebius
