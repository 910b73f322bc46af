// SPDX-License-Identifier: Apache-2.0
#include "attention_service/sharded_sum.h"

#include "moebius/base/status.h"

namespace moebius {

ShardedSum::ShardedSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
                       KvExchange& exchange, ShardCounters& counters)
    : exchange_(exchange),
      rounds_(compute, layout, window, shard, exchange, counters),
      states_(compute, window, shard, exchange, counters),
      heads_(compute, layout, window, shard, exchange, counters) {}

void ShardedSum::BeginStep(const StepPlan& plan, const std::vector<RoleRows>& rows) {
  by_states_.clear();
  by_rounds_.rows.clear();
  for (const RoleRows& part : rows) {
    const SessionRows& session = plan.sessions[static_cast<size_t>(part.session_index)];
    if (part.role == TokenRole::kGenerated || session.method == AttentionMethod::kRingPassQ) {
      by_states_.push_back(part);
    } else if (!SharesHeads(session)) {
      by_rounds_.rows.push_back(part);
    }
  }
  states_.BeginStep(plan, by_states_);
  by_rounds_.heads = rounds_.AllHeads();
  rounds_.BeginStep(plan, by_rounds_);
  heads_.BeginStep(plan, rounds_.num_rounds());
}

absl::Status ShardedSum::Start(const SpanCompute::Layer& layer) {
  if (!heads_.is_empty()) MOEBIUS_RETURN_IF_ERROR(heads_.Start(layer));
  MOEBIUS_RETURN_IF_ERROR(states_.Start(layer));
  return rounds_.Start(layer.kv.layer);
}

absl::Status ShardedSum::Run(const SpanCompute::Layer& layer, MutableBf16Rows out) {
  MOEBIUS_RETURN_IF_ERROR(states_.Run(layer, out));
  MOEBIUS_RETURN_IF_ERROR(rounds_.Run(layer, out));
  return heads_.is_empty() ? absl::OkStatus() : heads_.Run(layer, out);
}

}  // namespace moebius
