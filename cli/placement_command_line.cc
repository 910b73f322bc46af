// SPDX-License-Identifier: Apache-2.0
#include "cli/placement_command_line.h"

#include <cstdio>

#include "CLI/CLI.hpp"
#include "cli/command_flags.h"

#include "moebius/base/exit_code.h"

namespace moebius {
namespace {

constexpr char kExamples[] =
    R"(Who holds which experts, and plans that level their load over the services.

Examples:
  moebius placement show --router 127.0.0.1:43121
  moebius placement apply --dry-run --router 127.0.0.1:43121
  moebius placement plan --mode=eplb --case loads.json --json)";

constexpr char kShowExamples[] =
    R"(Which expert service of a router holds what, how many bytes that is, and how many assignments
each has served of it since the router began. Reads no weights.

Examples:
  moebius placement show --router 127.0.0.1:43121
  moebius placement show --router 127.0.0.1:43121 --all
  moebius placement show --router 127.0.0.1:43121 --json

--all lists each layer's experts with what was served of them there. --json has the same as served_of
beside services_of, and two figures: served_max_over_mean of the services, and busiest_replica_share,
what the busiest replica of an expert that several services hold served of it.)";

constexpr char kApplyExamples[] =
    R"(What would move where, so that a router's heaviest service is light under the load that it had.

Examples:
  moebius placement apply --dry-run --router 127.0.0.1:43121
  moebius placement apply --dry-run --router 127.0.0.1:43121 --move-budget 64MiB --json
  moebius placement apply --dry-run --router 127.0.0.1:43121 --out placement.json

Services keep as many experts as they have. Nothing is changed: a running router keeps its placement,
and the file that --out writes is for --placement of its next start.)";

constexpr char kPlanExamples[] =
    R"(Plan how often each expert is held, and where, so that the heaviest device is light.

Examples:
  moebius placement plan --case loads.json
  moebius placement plan --mode=eplb --case loads.json --json
  moebius placement plan --case cases.json --name one-hot-expert
  moebius placement plan --case loads.json --move-budget 64MiB

A case: {"load": [[9, 1, 1, 1]], "num_replicas": 6, "num_devices": 2}, a load for each layer and
expert; also num_groups and num_nodes (1), device_slots [N] instead of num_replicas, current (what
the slots hold now, -1 nothing) and expert_bytes. --json prints physical_to_logical, replica_count,
max_over_mean and lower_bound, each by layer.
balanced: no device holds an expert twice, any counts, groups stay on nodes where that costs at most
2 %. eplb: the public expert-parallelism balancer, slot for slot.)";

}  // namespace

void AddPlacementCommands(CLI::App& app, PlacementCommandLine& line) {
  CLI::App& command =
      AddCommand(app, "placement", "Show and plan which services hold which experts", kExamples);
  CLI::App& plan = AddCommand(command, "plan", "Plan a placement that levels load", kPlanExamples);
  AddTextFlags(plan,
               {{"Plan", "--mode", "MODE", &line.plan.mode, "balanced or eplb; balanced"},
                {"Plan", "--case", "FILE", &line.plan.case_file, "Loads, slots and devices"},
                {"Plan", "--name", "NAME", &line.plan.name, "The case, where the file has several"},
                {"Plan", "--move-budget", "BYTES", &line.plan.move_budget,
                 "Weights that may be loaded at most, as 512MiB"}});
  plan.add_flag("--json", line.plan.json, "One JSON object on stdout")->group("Output");

  CLI::App& show = AddCommand(command, "show", "Show who holds which experts", kShowExamples);
  AddRouterFlags(show, &line.live.router);
  show.add_flag("--all", line.live.all, "Every layer and expert")->group("Output");
  show.add_flag("--json", line.live.json, "One JSON object on stdout")->group("Output");

  CLI::App& apply =
      AddCommand(command, "apply", "Say what would move to level a router's load", kApplyExamples);
  AddRouterFlags(apply, &line.live.router);
  apply.add_flag("--dry-run", line.live.dry_run, "Change nothing")->group("Plan");
  AddTextFlags(apply,
               {{"Plan", "--move-budget", "BYTES", &line.live.move_budget,
                 "Weights that may be loaded at most, as 512MiB"},
                {"Output", "--out", "FILE", &line.live.out, "Also write it as a placement file"}});
  apply.add_flag("--json", line.live.json, "One JSON object on stdout")->group("Output");
}

int RunPlacementCommand(const CLI::App& command, const PlacementCommandLine& line) {
  if (command.got_subcommand("plan")) return RunPlacementPlan(line.plan);
  if (command.got_subcommand("show")) return RunPlacementShow(line.live);
  if (command.got_subcommand("apply")) return RunPlacementApply(line.live);
  std::fputs(command.help().c_str(), stdout);
  return kExitOk;
}

}  // namespace moebius
