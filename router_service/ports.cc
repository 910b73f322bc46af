// SPDX-License-Identifier: Apache-2.0
#include "router_service/ports.h"

namespace moebius {

void StepFigures::Add(const StepFigures& other) {
  embed_seconds += other.embed_seconds;
  attention_seconds += other.attention_seconds;
  norm_seconds += other.norm_seconds;
  gate_seconds += other.gate_seconds;
  plan_seconds += other.plan_seconds;
  expert_seconds += other.expert_seconds;
  combine_seconds += other.combine_seconds;
  head_seconds += other.head_seconds;
  num_rows += other.num_rows;
  assignments += other.assignments;
  dropped += other.dropped;
  dispatched_rows += other.dispatched_rows;
  reply_rows += other.reply_rows;
  group_fill_mismatches += other.group_fill_mismatches;
}

}  // namespace moebius
