// SPDX-License-Identifier: Apache-2.0
#include "cli/placement_command.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/arguments.h"
#include "cli/error_output.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"
#include "moebius/placement/balanced_plan.h"
#include "moebius/placement/eplb.h"
#include "moebius/placement/rebalance.h"

namespace moebius {
namespace {

constexpr int64_t kMaxCaseBytes = int64_t{256} << 20;

absl::StatusOr<PlacementMode> ParseMode(const std::optional<std::string>& mode) {
  if (!mode.has_value() || *mode == "balanced") return PlacementMode::kBalanced;
  if (*mode == "eplb") return PlacementMode::kEplb;
  return WithHint(absl::InvalidArgumentError(absl::StrCat("--mode is '", *mode, "'")),
                  "the modes are balanced and eplb");
}

template <typename Values>
Json IntegersJson(const Values& values) {
  std::vector<Json> elements;
  for (const auto value : values) elements.push_back(Json::Integer(value));
  return Json::Array(std::move(elements));
}

int32_t MostReplicas(const BalancedLayer& layer) {
  return *std::max_element(layer.replica_count.begin(), layer.replica_count.end());
}

absl::Status Run(const PlacementPlanFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const PlacementMode mode, ParseMode(flags.mode));
  if (!flags.case_file.has_value()) {
    return WithHint(absl::InvalidArgumentError("there is no case to plan for"), "give --case FILE");
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadInput(*flags.case_file, kMaxCaseBytes));
  MOEBIUS_ASSIGN_OR_RETURN(const PlacementCase question,
                           ParsePlacementCase(text, *flags.case_file, flags.name.value_or("")));
  if (!question.ignored.empty()) {
    std::fputs(
        absl::StrCat("note: the case's ", absl::StrJoin(question.ignored, ", "), " plays no part\n")
            .c_str(),
        stderr);
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::optional<int64_t> max_loaded,
                           ParseMoveBudget(flags, question));
  MOEBIUS_ASSIGN_OR_RETURN(const PlacementAnswer answer, PlanCase(question, mode, max_loaded));
  const std::string out = flags.json ? PlacementJson(question, answer).ToCanonicalText() + "\n"
                                     : FormatPlacement(question, answer);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<int64_t>> ParseMoveBudget(const PlacementPlanFlags& flags,
                                                       const PlacementCase& question) {
  if (!flags.move_budget.has_value()) return std::optional<int64_t>();
  MOEBIUS_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes("--move-budget", *flags.move_budget));
  if (question.current.empty() || question.expert_bytes.value_or(0) < 1) {
    return WithHint(absl::InvalidArgumentError("--move-budget needs to know what moves"),
                    "the case needs current, and expert_bytes of at least 1");
  }
  return std::optional<int64_t>(bytes / *question.expert_bytes);
}

absl::StatusOr<PlacementAnswer> PlanCase(const PlacementCase& question, PlacementMode mode,
                                         std::optional<int64_t> max_loaded) {
  PlacementAnswer answer;
  answer.mode = mode;
  const bool placed = !question.current.empty();
  if (mode == PlacementMode::kBalanced && placed) {
    MOEBIUS_ASSIGN_OR_RETURN(
        Rebalance rebalance,
        PlanRebalance(question.problems, question.current,
                      max_loaded.value_or(std::numeric_limits<int64_t>::max())));
    answer.layers = std::move(rebalance.layers);
    answer.loaded = rebalance.num_loaded;
    answer.limited = rebalance.limited;
    return answer;
  }
  if (max_loaded.has_value()) {
    return absl::InvalidArgumentError("only the mode balanced keeps to a move budget");
  }
  if (placed) answer.loaded = 0;
  for (size_t layer = 0; layer < question.problems.size(); ++layer) {
    const BalanceProblem& problem = question.problems[layer];
    absl::StatusOr<BalancedLayer> plan =
        mode == PlacementMode::kEplb ? PlanEplb(problem) : PlanBalanced(problem);
    if (!plan.ok()) return WithContext(plan.status(), absl::StrCat("layer ", layer));
    if (placed) *answer.loaded += CountLoaded(problem, question.current[layer], *plan);
    answer.layers.push_back(*std::move(plan));
  }
  return answer;
}

Json PlacementJson(const PlacementCase& question, const PlacementAnswer& answer) {
  std::vector<Json> slots, counts, reached, bounds;
  for (size_t layer = 0; layer < answer.layers.size(); ++layer) {
    slots.push_back(IntegersJson(answer.layers[layer].expert_of_slot));
    counts.push_back(IntegersJson(answer.layers[layer].replica_count));
    reached.push_back(Json::Number(MaxOverMean(question.problems[layer], answer.layers[layer])));
    bounds.push_back(Json::Number(LowerBoundOverMean(question.problems[layer])));
  }
  Json json = Json::Object({});
  json.Set("physical_to_logical", Json::Array(std::move(slots)));
  json.Set("replica_count", Json::Array(std::move(counts)));
  json.Set("max_over_mean", Json::Array(std::move(reached)));
  json.Set("lower_bound", Json::Array(std::move(bounds)));
  return json;
}

std::string FormatPlacement(const PlacementCase& question, const PlacementAnswer& answer) {
  const BalanceProblem& first = question.problems[0];
  const bool placed = !question.current.empty();
  std::string out = absl::StrFormat(
      "%s%d layer%s, %d experts in %d slots of %d devices, %d groups, %d nodes; mode %s\n",
      question.name.empty() ? "" : question.name + ": ", answer.layers.size(),
      answer.layers.size() == 1 ? "" : "s", first.num_experts(), first.num_slots(),
      first.num_devices(), first.num_groups, first.num_nodes,
      answer.mode == PlacementMode::kEplb ? "eplb" : "balanced");
  absl::StrAppend(&out, "heaviest device over the mean", placed ? "   now " : "", "   planned",
                  "   at best   most replicas   groups on one node\n");
  for (size_t layer = 0; layer < answer.layers.size(); ++layer) {
    const BalanceProblem& problem = question.problems[layer];
    const BalancedLayer& plan = answer.layers[layer];
    absl::StrAppendFormat(&out, "  layer %-21d", layer);
    if (placed) {
      absl::StrAppendFormat(&out, "   %5.3f", MaxOverMean(problem, question.current[layer]));
    }
    absl::StrAppendFormat(&out, "     %5.3f     %5.3f   %13d   %s\n", MaxOverMean(problem, plan),
                          LowerBoundOverMean(problem), MostReplicas(plan),
                          KeepsNodeLimit(problem, plan) ? "yes" : "no");
  }
  if (answer.loaded.has_value()) {
    absl::StrAppend(&out, FormatCount(*answer.loaded), " replicas move");
    if (question.expert_bytes.has_value()) {
      absl::StrAppend(&out, ", ", FormatBytes(*answer.loaded * *question.expert_bytes));
    }
    absl::StrAppend(&out, answer.limited ? "; the budget allows no more\n" : "\n");
  }
  return out;
}

int RunPlacementPlan(const PlacementPlanFlags& flags) {
  const absl::Status status = Run(flags);
  if (status.ok()) return kExitOk;
  PrintError(status, flags.json ? OutputForm::kJson : OutputForm::kText);
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

}  // namespace moebius
