// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"

#include "attention_service/head_sum.h"
#include "attention_service/kv_exchange.h"
#include "attention_service/round_sum.h"
#include "attention_service/shard_counters.h"
#include "attention_service/span_compute.h"
#include "attention_service/state_sum.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/step_plan.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// From queries to attention output for rows that see spans of other ranks, each session by its
/// method: keys come in rounds (ring pass-KV, all-gather), queries go out (ring pass-Q, and
/// generated rows under every method), or heads are shared (Ulysses, 2-D). All give the bits of a
/// rank that owns every span.
///
/// Not thread-safe. Start and Run are called off the executor and use it.
class ShardedSum {
 public:
  /// For layers with this window. Borrows `compute`, `exchange` and `counters`.
  ShardedSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
             KvExchange& exchange, ShardCounters& counters);

  /// Plans the step. `rows`: rows of this rank that see foreign spans or go by heads.
  void BeginStep(const StepPlan& plan, const std::vector<RoleRows>& rows);
  bool is_empty() const { return rounds_.is_empty() && states_.is_empty() && heads_.is_empty(); }

  /// Nobody reads what the layer before has shown any more.
  void BeginLayer() {
    if (!heads_.is_empty()) exchange_.CloseHeads();
  }
  /// Asks for what comes first.
  absl::Status Start(const SpanCompute::Layer& layer);
  /// The outputs of this sum's rows. After Start.
  absl::Status Run(const SpanCompute::Layer& layer, MutableBf16Rows out);

  const HeadSum& heads() const { return heads_; }

 private:
  KvExchange& exchange_;
  std::vector<RoleRows> by_states_;
  RoundSum::Work by_rounds_;
  RoundSum rounds_;
  StateSum states_;
  HeadSum heads_;
};

}  // namespace moebius
