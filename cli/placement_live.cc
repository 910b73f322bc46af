// SPDX-License-Identifier: Apache-2.0
#include "cli/placement_live.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/arguments.h"
#include "cli/error_output.h"
#include "cli/placement_picture.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

using LayerExperts = std::vector<std::pair<int32_t, int32_t>>;

template <typename Values>
Json IntegersJson(const Values& values) {
  std::vector<Json> elements;
  for (const auto value : values) elements.push_back(Json::Integer(value));
  return Json::Array(std::move(elements));
}

Json PairsJson(const LayerExperts& pairs) {
  std::vector<Json> elements;
  for (const auto& [layer, expert] : pairs) {
    elements.push_back(Json::Array({Json::Integer(layer), Json::Integer(expert)}));
  }
  return Json::Array(std::move(elements));
}

// Routed experts of a layer that each service holds, ascending.
std::vector<std::vector<int32_t>> HeldByService(const PlacementTable& placement,
                                                const PlacedLayer& layer) {
  std::vector<std::vector<int32_t>> held(placement.services.size());
  for (int32_t expert = 0; expert < placement.num_experts; ++expert) {
    for (const int32_t service : layer.services_of[static_cast<size_t>(expert)]) {
      held[static_cast<size_t>(service)].push_back(expert);
    }
  }
  return held;
}

// The same of a plan.
std::vector<std::vector<int32_t>> HeldByDevice(const BalanceProblem& problem,
                                               const BalancedLayer& plan) {
  std::vector<std::vector<int32_t>> held(problem.device_slots.size());
  size_t slot = 0;
  for (size_t device = 0; device < held.size(); ++device) {
    for (int32_t i = 0; i < problem.device_slots[device]; ++i, ++slot) {
      if (plan.expert_of_slot[slot] != kEmptySlot) {
        held[device].push_back(plan.expert_of_slot[slot]);
      }
    }
    std::sort(held[device].begin(), held[device].end());
  }
  return held;
}

std::vector<const PlacedLayer*> LayersWithExperts(const PlacementTable& placement) {
  std::vector<const PlacedLayer*> layers;
  for (const PlacedLayer& layer : placement.layers) {
    if (layer.has_experts) layers.push_back(&layer);
  }
  return layers;
}

// Services that hold the slices of the first layer of a kind.
std::vector<int32_t> SliceHolders(const PlacementTable& placement, bool has_experts) {
  std::vector<int32_t> holders;
  for (const PlacedLayer& layer : placement.layers) {
    if (layer.has_experts != has_experts) continue;
    const size_t first = has_experts ? static_cast<size_t>(placement.num_experts) : 0;
    for (size_t id = first; id < layer.services_of.size(); ++id) {
      holders.insert(holders.end(), layer.services_of[id].begin(), layer.services_of[id].end());
    }
    break;
  }
  std::sort(holders.begin(), holders.end());
  holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
  return holders;
}

// Who holds an expert after the plan: those that keep it in their old order, then new ones.
std::vector<int32_t> HoldersAfter(const std::vector<int32_t>& before,
                                  const std::vector<std::vector<int32_t>>& held, int32_t expert) {
  const auto has = [&](int32_t service) {
    const auto& of_service = held[static_cast<size_t>(service)];
    return std::binary_search(of_service.begin(), of_service.end(), expert);
  };
  std::vector<int32_t> holders;
  std::copy_if(before.begin(), before.end(), std::back_inserter(holders), has);
  for (int32_t service = 0; service < static_cast<int32_t>(held.size()); ++service) {
    const bool is_new = std::find(before.begin(), before.end(), service) == before.end();
    if (is_new && has(service)) holders.push_back(service);
  }
  return holders;
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const RouterCallFlags& flags) {
  const absl::StatusOr<ClientOptions> options = ParseRouterFlags(flags);
  if (!options.ok()) return AsUsageError(options.status());
  return Client::Make(*options);
}

absl::StatusOr<PlacementTable> AskPlacement(Client& client) {
  MOEBIUS_ASSIGN_OR_RETURN(PlacementTable placement, client.GetPlacement());
  if (placement.layers.empty()) {
    return WithHint(absl::UnavailableError("the router is not ready: it has no placement yet"),
                    "moebius wait returns when it is");
  }
  return placement;
}

absl::Status Show(const PlacementLiveFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(flags.router));
  MOEBIUS_ASSIGN_OR_RETURN(const PlacementTable placement, AskPlacement(*client));
  const std::string out = flags.json ? PlacementTableJson(placement).ToCanonicalText() + "\n"
                                     : FormatPlacementTable(placement, flags.all);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return absl::OkStatus();
}

absl::Status Apply(const PlacementLiveFlags& flags) {
  if (!flags.dry_run) {
    return AsUsageError(WithHint(
        absl::UnimplementedError("a running router does not change its placement"),
        "--dry-run says what would change, and --out FILE writes it for --placement of the next "
        "start"));
  }
  std::optional<int64_t> budget;
  if (flags.move_budget.has_value()) {
    const absl::StatusOr<int64_t> bytes = ParseBytes("--move-budget", *flags.move_budget);
    if (!bytes.ok()) return AsUsageError(bytes.status());
    budget = *bytes;
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(flags.router));
  MOEBIUS_ASSIGN_OR_RETURN(const PlacementTable placement, AskPlacement(*client));
  MOEBIUS_ASSIGN_OR_RETURN(const ExpertLoadTable load, client->GetExpertLoad());
  MOEBIUS_ASSIGN_OR_RETURN(const PlacementChange change, PlanChange(placement, load, budget));
  if (flags.out.has_value()) {
    std::ofstream file(*flags.out, std::ios::binary | std::ios::trunc);
    file << FormatPlacementFile(placement, change);
    file.close();
    if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", *flags.out));
  }
  const std::string out = flags.json ? ChangeJson(placement, change).ToCanonicalText() + "\n"
                                     : FormatChange(placement, change);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return absl::OkStatus();
}

int Finish(const absl::Status& status, bool json) {
  if (status.ok()) return kExitOk;
  PrintError(status, json ? OutputForm::kJson : OutputForm::kText);
  return IsUsageError(status) ? kExitUsage : kExitFailed;
}

}  // namespace

absl::StatusOr<PlacementCase> CaseOf(const PlacementTable& placement, const ExpertLoadTable& load) {
  const std::vector<const PlacedLayer*> layers = LayersWithExperts(placement);
  if (load.num_experts != placement.num_experts || load.layer_ids.size() != layers.size()) {
    return absl::FailedPreconditionError("the load and the placement are of different models");
  }
  PlacementCase question;
  question.expert_bytes = placement.expert_bytes;
  const auto num_experts = static_cast<size_t>(placement.num_experts);
  for (size_t index = 0; index < layers.size(); ++index) {
    BalanceProblem& problem = question.problems.emplace_back();
    const auto demand = load.demand.begin() + static_cast<std::ptrdiff_t>(index * num_experts);
    problem.load.assign(demand, demand + static_cast<std::ptrdiff_t>(num_experts));
    BalancedLayer& current = question.current.emplace_back();
    current.replica_count.assign(num_experts, 0);
    for (const std::vector<int32_t>& held : HeldByService(placement, *layers[index])) {
      problem.device_slots.push_back(static_cast<int32_t>(held.size()));
      current.expert_of_slot.insert(current.expert_of_slot.end(), held.begin(), held.end());
      for (const int32_t expert : held) ++current.replica_count[static_cast<size_t>(expert)];
    }
  }
  const auto is_zero = [](int64_t value) { return value == 0; };
  if (std::all_of(load.demand.begin(), load.demand.end(), is_zero)) {
    return WithHint(
        absl::FailedPreconditionError("nothing has been routed yet: there is no load to "
                                      "level"),
        "ask again once the router has served requests");
  }
  return question;
}

absl::StatusOr<PlacementChange> PlanChange(const PlacementTable& placement,
                                           const ExpertLoadTable& load,
                                           std::optional<int64_t> budget_bytes) {
  PlacementChange change;
  MOEBIUS_ASSIGN_OR_RETURN(change.question, CaseOf(placement, load));
  const int64_t max_loaded = budget_bytes.has_value()
                                 ? *budget_bytes / std::max<int64_t>(1, placement.expert_bytes)
                                 : std::numeric_limits<int64_t>::max();
  MOEBIUS_ASSIGN_OR_RETURN(change.rebalance, PlanRebalance(change.question.problems,
                                                           change.question.current, max_loaded));
  for (const PlacedService& service : placement.services) {
    change.moves.push_back({service.name, service.held_bytes, {}, {}});
  }
  for (size_t index = 0; index < change.question.problems.size(); ++index) {
    const BalanceProblem& problem = change.question.problems[index];
    const auto before = HeldByDevice(problem, change.question.current[index]);
    const auto after = HeldByDevice(problem, change.rebalance.layers[index]);
    const int32_t layer = load.layer_ids[index];
    for (size_t service = 0; service < before.size(); ++service) {
      const auto add_difference = [layer](const std::vector<int32_t>& of,
                                          const std::vector<int32_t>& without, LayerExperts* to) {
        for (const int32_t expert : of) {
          if (!std::binary_search(without.begin(), without.end(), expert)) {
            to->emplace_back(layer, expert);
          }
        }
      };
      add_difference(after[service], before[service], &change.moves[service].loads);
      add_difference(before[service], after[service], &change.moves[service].unloads);
    }
  }
  change.moved_bytes = change.rebalance.num_loaded * placement.expert_bytes;
  return change;
}

std::string FormatPlacementFile(const PlacementTable& placement, const PlacementChange& change) {
  const std::vector<const PlacedLayer*> layers = LayersWithExperts(placement);
  std::vector<Json> rules;
  for (size_t index = 0; index < layers.size(); ++index) {
    const auto held = HeldByDevice(change.question.problems[index], change.rebalance.layers[index]);
    std::map<std::vector<int32_t>, std::vector<int32_t>> experts_by_holders;
    for (int32_t expert = 0; expert < placement.num_experts; ++expert) {
      const auto& before = layers[index]->services_of[static_cast<size_t>(expert)];
      experts_by_holders[HoldersAfter(before, held, expert)].push_back(expert);
    }
    for (const auto& [holders, experts] : experts_by_holders) {
      Json rule = Json::Object({});
      rule.Set("layers", Json::Integer(layers[index]->layer));
      rule.Set("experts", IntegersJson(experts));
      rule.Set("services", IntegersJson(holders));
      rules.push_back(std::move(rule));
    }
  }
  Json file = Json::Object({});
  file.Set("services", Json::Integer(static_cast<int64_t>(placement.services.size())));
  file.Set("rules", Json::Array(std::move(rules)));
  const std::vector<int32_t> shared = SliceHolders(placement, /*has_experts=*/true);
  const std::vector<int32_t> dense = SliceHolders(placement, /*has_experts=*/false);
  if (!shared.empty()) file.Set("shared", IntegersJson(shared));
  if (!dense.empty()) file.Set("dense", IntegersJson(dense));
  return file.ToCanonicalText() + "\n";
}

std::string FormatChange(const PlacementTable& placement, const PlacementChange& change) {
  std::string out = absl::StrFormat(
      "epoch %d: %s of %d layers move, %s%s\nheaviest service over the mean     now   planned   at "
      "best\n",
      placement.epoch, absl::StrCat(FormatCount(change.rebalance.num_loaded), " replicas"),
      change.question.problems.size(), FormatBytes(change.moved_bytes),
      change.rebalance.limited ? "; the budget allows no more" : "");
  const std::vector<const PlacedLayer*> layers = LayersWithExperts(placement);
  for (size_t index = 0; index < change.question.problems.size(); ++index) {
    const BalanceProblem& problem = change.question.problems[index];
    absl::StrAppendFormat(&out, "  layer %-23d %8.3f %9.3f %9.3f\n", layers[index]->layer,
                          MaxOverMean(problem, change.question.current[index]),
                          MaxOverMean(problem, change.rebalance.layers[index]),
                          LowerBoundOverMean(problem));
  }
  for (const ServiceMoves& moves : change.moves) {
    const auto num_loads = static_cast<int64_t>(moves.loads.size());
    absl::StrAppendFormat(
        &out, "  %-14s loads %s, unloads %s   holds %s, at most %s while both are there\n",
        EscapeControls(moves.name), FormatCount(num_loads),
        FormatCount(static_cast<int64_t>(moves.unloads.size())), FormatBytes(moves.held_bytes),
        FormatBytes(moves.held_bytes + num_loads * placement.expert_bytes));
  }
  return out + "nothing was changed: this was a dry run\n";
}

Json ChangeJson(const PlacementTable& placement, const PlacementChange& change) {
  std::vector<Json> before, after, bounds, services, layer_ids;
  for (const PlacedLayer* layer : LayersWithExperts(placement)) {
    layer_ids.push_back(Json::Integer(layer->layer));
  }
  for (size_t index = 0; index < change.question.problems.size(); ++index) {
    const BalanceProblem& problem = change.question.problems[index];
    before.push_back(Json::Number(MaxOverMean(problem, change.question.current[index])));
    after.push_back(Json::Number(MaxOverMean(problem, change.rebalance.layers[index])));
    bounds.push_back(Json::Number(LowerBoundOverMean(problem)));
  }
  for (const ServiceMoves& moves : change.moves) {
    const auto loaded = static_cast<int64_t>(moves.loads.size()) * placement.expert_bytes;
    const auto unloaded = static_cast<int64_t>(moves.unloads.size()) * placement.expert_bytes;
    Json entry = Json::Object({});
    entry.Set("name", Json::String(moves.name));
    entry.Set("loads", PairsJson(moves.loads));
    entry.Set("unloads", PairsJson(moves.unloads));
    entry.Set("loaded_bytes", Json::Integer(loaded));
    entry.Set("held_bytes", Json::Integer(moves.held_bytes));
    entry.Set("held_bytes_after", Json::Integer(moves.held_bytes + loaded - unloaded));
    entry.Set("held_bytes_at_most", Json::Integer(moves.held_bytes + loaded));
    services.push_back(std::move(entry));
  }
  Json json = Json::Object({});
  json.Set("epoch", Json::Integer(static_cast<int64_t>(placement.epoch)));
  json.Set("dry_run", Json::Boolean(true));
  json.Set("layer_ids", Json::Array(std::move(layer_ids)));
  json.Set("max_over_mean_before", Json::Array(std::move(before)));
  json.Set("max_over_mean", Json::Array(std::move(after)));
  json.Set("lower_bound", Json::Array(std::move(bounds)));
  json.Set("moved_replicas", Json::Integer(change.rebalance.num_loaded));
  json.Set("moved_bytes", Json::Integer(change.moved_bytes));
  json.Set("limited_by_budget", Json::Boolean(change.rebalance.limited));
  json.Set("services", Json::Array(std::move(services)));
  return json;
}

int RunPlacementShow(const PlacementLiveFlags& flags) { return Finish(Show(flags), flags.json); }
int RunPlacementApply(const PlacementLiveFlags& flags) { return Finish(Apply(flags), flags.json); }

}  // namespace moebius
