// SPDX-License-Identifier: Apache-2.0
#include "router_service/config.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"
#include "moebius/telemetry/expert_load.h"
#include "moebius/transport/address.h"
#include "moebius/wire/slot_codec.h"
#include "router_service/attention_rule.h"
#include "router_service/placement_file.h"
#include "router_service/router_core.h"
#include "router_service/tracing.h"

namespace moebius {
namespace {

constexpr int64_t kMaxSlowStepMs = 3600 * 1000;

}  // namespace

void AddRouterSettings(RouterFlags* flags, Settings* settings) {
  settings->AddText({"Addresses", "grpc-listen", "HOST:PORT", "The public API (gRPC)"},
                    &flags->grpc_listen);
  settings->AddSwitch({"Addresses", "reflection", "", "Let the public port describe its API"},
                      &flags->reflection);
  settings->AddText(
      {"Addresses", "api-keys", "FILE",
       "Who may call the public API, and how much (docs/api_keys.md); empty: anybody"},
      &flags->api_keys);
  settings->AddInteger({"Cluster", "experts", "M", "Expert services that will join"}, 1, kMaxSlots,
                       &flags->num_experts);
  settings->AddInteger(
      {"Cluster", "expert-replicas", "R", "Services that hold each routed expert; 0: 2, or 1 of 1"},
      0, kMaxSlots, &flags->expert_replicas);
  settings->AddText({"Cluster", "placement", "FILE",
                     "Which service holds which expert (docs/placement.md); empty: all in turn"},
                    &flags->placement_file);
  settings->AddInteger({"Cluster", "attention", "N", "Attention ranks that will join"}, 1,
                       kMaxSlots, &flags->num_attention);
  settings->AddInteger({"Steps", "row-budget", "N", "Rows of one step"}, 1, kMaxRowBudget,
                       &flags->row_budget);
  settings->AddInteger({"Steps", "chunk", "N", "Prompt rows in one step; 0: the row budget"}, 0,
                       kMaxRowBudget, &flags->chunk_rows);
  settings->AddInteger({"Steps", "slow-step-ms", "N",
                        "A step that takes longer is counted, and told of in the log; 0: none is"},
                       0, kMaxSlowStepMs, &flags->slow_step_ms);
  settings->AddInteger(
      {"Process", "drain-grace-seconds", "N",
       "After SIGTERM it takes requests so long, not ready: who sends them sees it"},
      0, 86400, &flags->drain_grace_seconds);
  settings->AddText({"Metrics", "metrics-expert-detail", "auto|off|layer-expert",
                     "Demand by layer and expert: all up to 2,048 series, none, or all"},
                    &flags->metrics_expert_detail);
  settings->AddText({"Tracing", "trace-endpoint", "URL",
                     "Where spans go by OTLP/HTTP JSON, as http://HOST:PORT/v1/traces (no https; "
                     "docs/tracing.md); empty: nowhere"},
                    &flags->trace_endpoint);
  settings->AddText({"Tracing", "trace-sample-ratio", "R",
                     "Share of the calls without a traceparent that are traced, 0 to 1; with one "
                     "the caller decides"},
                    &flags->trace_sample_ratio);
  settings->AddText({"Tracing", "trace-caller-rate", "R",
                     "Calls a second that are traced because their callers say so; of more than "
                     "that none is; 0: none"},
                    &flags->trace_caller_rate);
  settings->AddText({"Capacity", "capacity-factor", "CF",
                     "Rows of a step that an expert takes: CF times its even share; 0: any "
                     "(docs/routing.md)"},
                    &flags->capacity.factor);
  settings->AddText({"Capacity", "capacity-by", "ORDER",
                     "Whose rows a full expert keeps: by weight, position or token; weight"},
                    &flags->capacity.order);
  settings->AddText({"Capacity", "capacity-overflow", "WAY",
                     "The others: drop, drop_renormalize, next_best or reject; drop"},
                    &flags->capacity.overflow);
  settings->AddText({"Capacity", "min-capacity", "N", "Rows that an expert takes at least; 1"},
                    &flags->capacity.min_capacity);
  settings->AddChoice({"Bias", "bias-balancer", "MODE",
                       "Move the gates' biases to even out load: shadow only tells what that would "
                       "change, on changes answers"},
                      {"off", "shadow", "on"}, &flags->bias_balancer);
  settings->AddText({"Bias", "bias-file", "FILE", "Where the biases are kept; needed for on"},
                    &flags->bias_file);
  settings->AddChoice({"Bias", "bias-rule", "RULE", "How a window's demand moves a bias"},
                      {"sign", "proportional"}, &flags->bias_rule);
  settings->AddText({"Bias", "bias-gamma", "G", "Step of a bias in a window"}, &flags->bias_gamma);
  settings->AddText({"Bias", "bias-limit", "L", "How far a bias goes from the checkpoint's"},
                    &flags->bias_limit);
  settings->AddInteger({"Bias", "bias-window", "N",
                        "Assignments per expert of a window; 0: only UpdateBias moves them"},
                       0, int64_t{1} << 40, &flags->bias_window);
  settings->AddText({"Steps", "attention-method", "NAME",
                     "How attention ranks share a prompt: auto, all-gather, ring-pass-kv, "
                     "ring-pass-q, ulysses or 2d; the answer stays the same"},
                    &flags->attention_method);
  settings->AddText(
      {"Steps", "attention-rates", "RATES",
       "What auto counts with: measured (at the start), or the ranks' FLOP/s, bytes/s "
       "and seconds of a message, as 100e9,1e9,100e-6"},
      &flags->attention_rates);
}

absl::Status ValidateRouterFlags(const RouterFlags& flags) {
  if (const auto address = ParseAddress(flags.grpc_listen); !address.ok()) {
    return WithContext(address.status(), "--grpc-listen");
  }
  if (flags.expert_replicas > flags.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("--expert-replicas ", flags.expert_replicas,
                                                   " on ", flags.num_experts, " expert services"));
  }
  if (!flags.placement_file.empty() && flags.expert_replicas > 0) {
    return absl::InvalidArgumentError(
        "--placement and --expert-replicas contradict each other: the file says how many");
  }
  if (flags.chunk_rows > flags.row_budget) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--chunk ", flags.chunk_rows, " is more than --row-budget ", flags.row_budget));
  }
  MOEBIUS_RETURN_IF_ERROR(ParseCapacity(flags.capacity).status());
  MOEBIUS_RETURN_IF_ERROR(BiasOptionsOf(flags).status());
  MOEBIUS_RETURN_IF_ERROR(TracingOptionsOf(flags).status());
  ExpertDetail detail;
  if (!ParseExpertDetail(flags.metrics_expert_detail, &detail)) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics-expert-detail is auto, off or ",
                                                   "layer-expert, not '",
                                                   flags.metrics_expert_detail, "'"));
  }
  MOEBIUS_RETURN_IF_ERROR(ParseRankRates(flags.attention_rates).status());
  MethodRule rule{.num_ranks = static_cast<int32_t>(flags.num_attention)};
  MOEBIUS_ASSIGN_OR_RETURN(rule.forced, ParseAttentionRule(flags.attention_method));
  return ValidateMethodRule(rule);
}

absl::StatusOr<BiasControlOptions> BiasOptionsOf(const RouterFlags& flags) {
  BiasControlOptions options;
  MOEBIUS_ASSIGN_OR_RETURN(options.mode, ParseBiasMode(flags.bias_balancer));
  if (options.mode == BiasMode::kOn && flags.bias_file.empty()) {
    return WithHint(absl::InvalidArgumentError("--bias-balancer=on needs --bias-file"),
                    "biases that are in force must outlive the process");
  }
  options.balancer.rule =
      flags.bias_rule == "proportional" ? BiasRule::kProportional : BiasRule::kSign;
  MOEBIUS_ASSIGN_OR_RETURN(const double gamma, ParseNumber("--bias-gamma", flags.bias_gamma));
  MOEBIUS_ASSIGN_OR_RETURN(const double limit, ParseNumber("--bias-limit", flags.bias_limit));
  options.balancer.gamma = static_cast<float>(gamma);
  options.balancer.limit = static_cast<float>(limit);
  options.window = flags.bias_window;
  MOEBIUS_RETURN_IF_ERROR(ValidateBiasControl(options));
  return options;
}

absl::StatusOr<Placement> PlacementOf(const ModelConfig& config, const RouterFlags& flags) {
  if (flags.placement_file.empty()) {
    return BuildServicePlacement(config, flags.num_experts, flags.Replicas());
  }
  return ReadPlacementFile(flags.placement_file, BuildPlacementShape(config),
                           static_cast<int32_t>(flags.num_experts));
}

}  // namespace moebius
