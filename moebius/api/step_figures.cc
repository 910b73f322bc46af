// SPDX-License-Identifier: Apache-2.0
#include "moebius/api/step_figures.h"

namespace moebius {

void PortTraffic::Add(const PortTraffic& other) {
  messages += other.messages;
  bytes_out += other.bytes_out;
  bytes_back += other.bytes_back;
}

PortTraffic PortTraffic::Since(const PortTraffic& before) const {
  return {messages - before.messages, bytes_out - before.bytes_out, bytes_back - before.bytes_back};
}

void StepFigures::Add(const StepFigures& other) {
  embed_seconds += other.embed_seconds;
  attention_seconds += other.attention_seconds;
  norm_seconds += other.norm_seconds;
  gate_seconds += other.gate_seconds;
  plan_seconds += other.plan_seconds;
  expert_seconds += other.expert_seconds;
  combine_seconds += other.combine_seconds;
  head_seconds += other.head_seconds;
  stall_seconds += other.stall_seconds;
  num_rows += other.num_rows;
  assignments += other.assignments;
  dropped += other.dropped;
  dispatched += other.dispatched;
  nonfinite_assignments += other.nonfinite_assignments;
  rerouted += other.rerouted;
  combined += other.combined;
  conservation_errors += other.conservation_errors;
  dispatched_rows += other.dispatched_rows;
  reply_rows += other.reply_rows;
  resends += other.resends;
  resent_rows += other.resent_rows;
  attention_traffic.Add(other.attention_traffic);
  expert_traffic.Add(other.expert_traffic);
  naive_messages += other.naive_messages;
  naive_bytes += other.naive_bytes;
  group_fill_mismatches += other.group_fill_mismatches;
  attention_methods |= other.attention_methods;
}

}  // namespace moebius
