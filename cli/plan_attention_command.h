// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"

#include "moebius/attention/cost_model.h"
#include "moebius/model/json.h"

namespace CLI {
class App;
}

namespace moebius {

/// Flags of `moebius plan attention`, as typed; empty: the default.
struct PlanAttentionFlags {
  std::optional<std::string> model;
  std::optional<std::string> context, new_tokens, cached_tokens;
  std::optional<std::string> query_heads, kv_heads, head_dim, value_dim, bytes, window;
  std::optional<std::string> ranks, ulysses_ranks, span, return_bytes;
  std::optional<std::string> attention_sum, attention_layout;
  std::optional<std::string> flops, bandwidth, latency;
  bool not_causal = false;
  bool json = false;
};

/// Adds `plan` with its command `attention`. The flags are filled when the line is parsed and must
/// outlive that.
void AddPlan(CLI::App& app, PlanAttentionFlags& flags);

/// Prints how one layer's attention is best shared, and why. Returns the exit code.
int RunPlanAttention(const PlanAttentionFlags& flags);

/// What was planned for.
struct AttentionPlanInputs {
  AttentionHeads heads;
  AttentionWork work;
  RankRates rates;
  CostOptions options;
  bool is_measured = false;  // a rate that was not given, on this host
};

/// {"choice", "reason", "attention_sum", per-degree "attention_layout", "methods": {name: {seconds,
/// bytes, exposed_seconds, memory_bytes, ranks, …}}, "inputs"}.
Json AttentionPlanToJson(const AttentionChoice& choice, const AttentionPlanInputs& inputs);

}  // namespace moebius
