// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

/// Seconds of the monotonic clock that a step spent in each phase, and what it counted.
/// What a router exchanged with one kind of service. Bytes are those of messages, without frame
/// headers.
struct PortTraffic {
  int64_t messages = 0;  // sent; most are answered by one
  int64_t bytes_out = 0;
  int64_t bytes_back = 0;

  void Add(const PortTraffic& other);
  PortTraffic Since(const PortTraffic& before) const;
  friend bool operator==(const PortTraffic&, const PortTraffic&) = default;
};

struct StepFigures {
  double embed_seconds = 0;
  double attention_seconds = 0;  // the attention port, waiting included
  double norm_seconds = 0;
  double gate_seconds = 0;
  double plan_seconds = 0;
  double expert_seconds = 0;  // the expert port, waiting included
  double combine_seconds = 0;
  double head_seconds = 0;
  double stall_seconds = 0;  // of plan and expert seconds: those after a service had failed
  int64_t num_rows = 0;
  int64_t assignments = 0;  // routed: T·k over all MoE layers, without refused rows
  int64_t dropped = 0;      // by capacity; 0 while dropless
  int64_t dispatched = 0;   // counted in the plans; what is sent again is not counted again
  /// k for each layer with a gate that a row met with a NaN or an infinity: they are not in
  /// `assignments`, since such a row chooses nobody.
  int64_t nonfinite_assignments = 0;
  int64_t rerouted = 0;  // by capacity, to another expert
  int64_t combined = 0;  // counted where replies become rows; routed = combined + dropped
  /// Experts of layers whose demand is not what was served and dropped; 0, or a fault of ours.
  int64_t conservation_errors = 0;
  int64_t dispatched_rows = 0;  // a row counts once per service, layer and round
  int64_t reply_rows = 0;
  int64_t resends = 0;      // rounds after a layer's first
  int64_t resent_rows = 0;  // rows that were planned again in them
  PortTraffic attention_traffic;
  PortTraffic expert_traffic;
  // A protocol with one message per expert and layer, and one row per assignment each way.
  int64_t naive_messages = 0;
  int64_t naive_bytes = 0;            // of rows, each way
  int64_t group_fill_mismatches = 0;  // rows whose choice the other group fill would change
  /// Bit m: several ranks shared prompt rows by AttentionMethod m.
  uint32_t attention_methods = 0;

  void Add(const StepFigures& other);
};

}  // namespace moebius
