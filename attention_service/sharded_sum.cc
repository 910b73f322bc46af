// SPDX-License-Identifier: Apache-2.0
#include "attention_service/sharded_sum.h"

#include <utility>

#include "moebius/base/status.h"

namespace moebius {

ShardedSum::ShardedSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
                       KvExchange& exchange, ShardCounters& counters)
    : exchange_(exchange),
      rounds_(compute, layout, window, shard, exchange, counters),
      states_(compute, window, shard, exchange, counters),
      heads_(compute, layout, window, shard, exchange, counters) {}

void ShardedSum::BeginStep(const StepPlan& plan, const std::vector<RoleRows>& rows) {
  std::vector<RoleRows> by_rounds;
  std::vector<RoleRows> by_states;
  for (const RoleRows& part : rows) {
    const SessionRows& session = plan.sessions[static_cast<size_t>(part.session_index)];
    if (part.role == TokenRole::kGenerated || session.method == AttentionMethod::kRingPassQ) {
      by_states.push_back(part);
    } else if (!SharesHeads(session)) {
      by_rounds.push_back(part);
    }
  }
  states_.BeginStep(plan, by_states);
  rounds_.BeginStep(plan, {.rows = std::move(by_rounds), .heads = rounds_.AllHeads()});
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
