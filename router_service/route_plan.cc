// SPDX-License-Identifier: Apache-2.0
#include "router_service/route_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/routing/gate.h"
#include "moebius/routing/replica_choice.h"
#include "moebius/tensor/bf16.h"

namespace moebius {
namespace {

PlacementShape ShapeOf(const ModelConfig& config) {
  return PlacementShape::Make(config.gate.num_experts, config.moe_layers, config.num_shared_experts,
                              config.NumDenseSlices());
}

// The same services and routed experts, without the slices that every token visits.
absl::StatusOr<Placement> RoutedAlone(const Placement& placement) {
  PlacementShape shape = placement.shape();
  Placement::Table table(shape.layers.size());
  for (size_t layer = 0; layer < shape.layers.size(); ++layer) {
    shape.layers[layer].num_slices = shape.layers[layer].has_experts ? 0 : 1;
    const LayerId layer_id(static_cast<int32_t>(layer));
    const int32_t num_ids = shape.NumIds(layer_id);
    table[layer].resize(static_cast<size_t>(num_ids));
    for (int32_t id = 0; id < num_ids; ++id) {
      const auto services = placement.Services(layer_id, ExpertId(id));
      table[layer][static_cast<size_t>(id)].assign(services.begin(), services.end());
    }
  }
  return Placement::Make(placement.epoch(), std::move(shape), placement.num_services(), table);
}

absl::Status Plan(const ModelConfig& config, const NumericsConfig& numerics,
                  const Placement& placement, LayerId layer, const Assignments& assignments,
                  DispatchPlan* plan) {
  LayerRule rule;
  rule.layer = layer;
  rule.num_experts = config.gate.num_experts;
  rule.num_combine_groups = numerics.num_combine_groups;
  rule.num_slices = placement.shape().LayerAt(layer).num_slices;
  DispatchLimits limits;
  limits.message_rows = MessageRows(config.ExpertWeightBytes());
  return BuildDispatchPlan(rule, assignments, placement, limits, plan);
}

std::vector<int32_t> RoutedExperts(const Placement& placement, LayerId layer, ServiceId service) {
  std::vector<int32_t> experts;
  for (const HeldExpert& held : placement.HeldBy(service)) {
    if (held.layer == layer && held.id.value() < placement.shape().num_experts) {
      experts.push_back(held.id.value());
    }
  }
  return experts;
}

// What each expert is asked for, and what the capacity makes of it; `assignments` are then those
// that would be dispatched.
void ApplyCapacity(const RouteRule& rule, const GateRecord& gate, Assignments* assignments,
                   RouteAnswer* answer) {
  const FloatRows logits(gate.logits().data(), assignments->num_rows, answer->num_experts);
  CapacityLimiter limiter;
  CapacityResult result;
  limiter.Apply(rule.capacity, answer->num_experts, {&rule.config->gate, logits, rule.bias},
                assignments, &result);
  answer->load = std::move(result.demand);
  answer->dropped = std::move(result.dropped);
  answer->rerouted = std::move(result.rerouted_out);
}

// Each token's choices, strongest weight first, ties to the lowest id.
void SortChoices(const Assignments& assignments, RouteAnswer* answer) {
  std::vector<std::pair<float, int32_t>> choices;
  for (int64_t row = 0; row < assignments.num_rows; ++row) {
    choices.clear();
    for (int32_t choice = 0; choice < assignments.top_k; ++choice) {
      const size_t index = static_cast<size_t>(choice);
      choices.emplace_back(-assignments.RowWeights(row)[index],
                           DemandedExpert(assignments.RowIds(row)[index]));
    }
    std::sort(choices.begin(), choices.end());
    for (const auto& [negative_weight, id] : choices) {
      answer->expert_ids.push_back(id);
      answer->weights.push_back(-negative_weight);
    }
  }
}

void FindClosestTie(const ModelConfig& config, const NumericsConfig& numerics,
                    absl::Span<const float> bias, const GateRecord& gate, RouteAnswer* answer) {
  const size_t num_experts = static_cast<size_t>(config.gate.num_experts);
  for (int64_t row = 0; row < gate.assignments().num_rows; ++row) {
    const std::optional<RunnerUp> runner_up = FindRunnerUp(
        config.gate, numerics.group_fill,
        gate.logits().subspan(static_cast<size_t>(row) * num_experts, num_experts), bias);
    if (!runner_up.has_value()) continue;
    if (answer->closest_tie.has_value() && answer->closest_tie->gap <= runner_up->gap) continue;
    answer->closest_tie =
        ClosestTie{row, runner_up->chosen_expert, runner_up->next_expert, runner_up->gap};
  }
}

}  // namespace

void GateRecord::OnGate(LayerId layer, FloatRows logits, const Assignments& assignments) {
  if (layer != layer_) return;
  assignments_.num_rows += assignments.num_rows;
  assignments_.top_k = assignments.top_k;
  assignments_.expert_ids.insert(assignments_.expert_ids.end(), assignments.expert_ids.begin(),
                                 assignments.expert_ids.end());
  assignments_.weights.insert(assignments_.weights.end(), assignments.weights.begin(),
                              assignments.weights.end());
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    const absl::Span<const float> values = logits.span(row);
    logits_.insert(logits_.end(), values.begin(), values.end());
  }
}

absl::Status CheckMoeLayer(const ModelConfig& config, int32_t layer) {
  if (layer >= 0 && layer < config.num_layers && config.IsMoeLayer(layer)) {
    return absl::OkStatus();
  }
  std::vector<int32_t> with_experts;
  for (int32_t index = 0; index < config.num_layers; ++index) {
    if (config.IsMoeLayer(index)) with_experts.push_back(index);
  }
  const std::string what = layer >= 0 && layer < config.num_layers
                               ? "is dense: it has no routed experts"
                               : absl::StrCat("does not exist: there are ", config.num_layers);
  return WithHint(absl::InvalidArgumentError(absl::StrCat("layer ", layer, " ", what)),
                  absl::StrCat("layers with experts: ", absl::StrJoin(with_experts, ", ")));
}

absl::StatusOr<Placement> MakeRoutePlacement(const ModelConfig& config, int32_t num_services) {
  constexpr int32_t kMaxServices = 64;
  if (num_services < 1 || num_services > kMaxServices) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_services is ", num_services, "; it must be from 1 to ", kMaxServices));
  }
  StaticPlacementOptions options;
  options.num_services = num_services;
  return Placement::Static(ShapeOf(config), options);
}

absl::StatusOr<RouteAnswer> BuildRouteAnswer(const RouteRule& rule, const Placement& placement,
                                             const RouteRequest& request, const GateRecord& gate) {
  const ModelConfig& config = *rule.config;
  const NumericsConfig& numerics = *rule.numerics;
  const LayerId layer(request.layer);
  Assignments assignments = gate.assignments();
  MOEBIUS_CHECK_EQ(assignments.num_rows, static_cast<int64_t>(request.token_ids.size()));
  RouteAnswer answer;
  answer.layer = request.layer;
  answer.num_experts = config.gate.num_experts;
  answer.top_k = config.gate.top_k;
  answer.num_groups = config.gate.num_groups;
  answer.num_kept_groups = config.gate.num_kept_groups;
  answer.token_ids = request.token_ids;
  answer.row_bytes = config.hidden_size * static_cast<int64_t>(sizeof(Bf16));
  GateCounts counts;
  Assignments again;
  SelectExperts(config.gate, numerics.group_fill,
                FloatRows(gate.logits().data(), assignments.num_rows, config.gate.num_experts),
                rule.bias, &again, &counts);
  answer.group_fill_mismatches = counts.group_fill_mismatches;
  SortChoices(assignments, &answer);
  ApplyCapacity(rule, gate, &assignments, &answer);
  FindClosestTie(config, numerics, rule.bias, gate, &answer);

  DispatchPlan plan;
  MOEBIUS_ASSIGN_OR_RETURN(const Placement routed, RoutedAlone(placement));
  MOEBIUS_RETURN_IF_ERROR(Plan(config, numerics, routed, layer, assignments, &plan));
  for (const ServiceDispatch& dispatch : plan.services()) {
    RoutedService& service = answer.services.emplace_back();
    service.name = absl::StrCat("expert-", dispatch.service.value());
    service.experts = RoutedExperts(routed, layer, dispatch.service);
    service.rows_sent = dispatch.num_rows();
    service.reply_rows = dispatch.num_reply_rows;
  }
  MOEBIUS_RETURN_IF_ERROR(Plan(config, numerics, placement, layer, assignments, &plan));
  // Where experts have replicas the two plans may choose others.
  answer.shared_rows_sent =
      std::max<int64_t>(0, plan.counts().dispatched_rows - answer.rows_sent());
  answer.shared_reply_rows = std::max<int64_t>(0, plan.counts().reply_rows - answer.reply_rows());
  return answer;
}

}  // namespace moebius
