// SPDX-License-Identifier: Apache-2.0
#include "cli/router_command_line.h"

#include "CLI/CLI.hpp"
#include "cli/command_flags.h"

namespace moebius {
namespace {

constexpr char kRouteExamples[] =
    R"(Which experts the tokens of a prompt meet in one layer, and who sends how many rows to whom.

Examples:
  moebius route --model models/demo --prompt "And the king said to them" --layer 3 --experts 4
  moebius route --model models/demo --prompt-ids 256,72,105 --layer 1 --json
  moebius route --router 127.0.0.1:43121 --prompt "And the king" --layer 3 --all

A dry run: it answers nobody and counts in no load. With --experts N the dispatch is planned for N
expert services that split the experts evenly; a router's own services otherwise, 4 without one.)";

constexpr char kExpertsExamples[] =
    R"(The load of every routed expert, layer by layer, as a heat map.

Examples:
  moebius experts --router 127.0.0.1:43121
  moebius experts --router 127.0.0.1:43121 --json
  moebius experts --model models/demo --prompt "And the king said to them" --max-tokens 64

Of a router: all that it has served. Of a model: what one answer in this process asks for.)";

constexpr char kStatusExamples[] =
    R"(What a router serves, who works for it and who is missing, how much runs.

Examples:
  moebius status --router 127.0.0.1:43121
  moebius status --router 127.0.0.1:43121 --limits
  moebius status --router 127.0.0.1:43121 --json)";

constexpr char kHealthExamples[] =
    R"(Whether a router takes requests: exit code 0, or 1 and what is missing.

Examples:
  moebius health --router 127.0.0.1:43121
  moebius health --router 127.0.0.1:43121 --name liveness --json)";

constexpr char kWaitExamples[] =
    R"(Waits until a router takes requests: exit code 0, or 1 and what is missing when time is up.

Examples:
  moebius wait --router 127.0.0.1:43121 --timeout 60s
  moebius wait --router 127.0.0.1:43121 --json)";

constexpr char kExplainExamples[] =
    R"(How a request stands or went: steps, times, rows sent again, exactness.

Examples:
  moebius explain chat-17 --router 127.0.0.1:43121
  moebius explain chat-17 --router 127.0.0.1:43121 --json

A router knows those that run and the last ones that ended. The id is the request's own, or in the
--json object of `moebius generate`.)";

constexpr char kTopExamples[] =
    R"(A router, live: is every answer exact, who is missing, tokens a second, what bounds it, the load.

Examples:
  moebius top --router 127.0.0.1:43121
  moebius top --router 127.0.0.1:43121 --interval 5s --count 12
  moebius top --router 127.0.0.1:43121 --json

On a terminal until q or Ctrl-C; elsewhere one frame, after one interval, unless --count says more.)";

constexpr char kDrainExamples[] =
    R"(Lets an expert service finish and take no more rows: its replicas serve them. For good.

Examples:
  moebius drain --expert 127.0.0.1:7421
  moebius drain --expert 10.0.0.7:7421 --timeout 2m --json

The address is that of its --admin-listen. Exit code 1 when rows were still under way in the end; it
goes on draining.)";

void AddOutputFlags(CLI::App& command, bool* json, bool* quiet) {
  command.add_flag("--json", *json, "One JSON object on stdout")->group("Output");
  if (quiet != nullptr) command.add_flag("--quiet", *quiet, "No progress bar")->group("Output");
}

void AddRoute(CLI::App& app, RouteFlags& flags) {
  CLI::App& command = AddCommand(
      app, "route", "Show which experts a prompt meets, and the dispatch", kRouteExamples);
  AddModelFlag(command, &flags.model, Presence::kOptional);
  AddRouterFlags(command, &flags.router);
  AddPromptFlags(command, &flags.prompt, &flags.prompt_file, &flags.prompt_ids);
  AddTextFlags(command,
               {{"Routing", "--layer", "N", &flags.layer, "The layer, from 0"},
                {"Routing", "--experts", "N", &flags.experts, "Expert services to plan for"},
                {"Routing", "--nodes", "N", &flags.nodes, "Nodes that the services are on"},
                {"Routing", "--capacity-factor", "CF", &flags.capacity_factor,
                 "Tell what it would drop; 1.25, 0 tells nothing"},
                {"Machine", "--threads", "N", &flags.threads,
                 "With --model: what CPU affinity and cgroup allow"}});
  command.add_flag("--all", flags.all, "Every token, not the first 16")->group("Output");
  AddOutputFlags(command, &flags.json, &flags.quiet);
}

void AddExperts(CLI::App& app, ExpertsFlags& flags) {
  CLI::App& command = AddCommand(app, "experts", "Show the load of every expert", kExpertsExamples);
  AddModelFlag(command, &flags.model, Presence::kOptional);
  AddRouterFlags(command, &flags.router);
  AddPromptFlags(command, &flags.prompt, &flags.prompt_file, &flags.prompt_ids);
  AddTextFlags(command, {{"Prompt", "--max-tokens", "N", &flags.max_tokens,
                          "Tokens to generate with --model; 32"},
                         {"Machine", "--threads", "N", &flags.threads,
                          "With --model: what CPU affinity and cgroup allow"}});
  AddOutputFlags(command, &flags.json, &flags.quiet);
}

void AddTop(CLI::App& app, TopFlags& flags) {
  CLI::App& command = AddCommand(app, "top", "Watch a router live", kTopExamples);
  AddRouterFlags(command, &flags.router);
  AddTextFlags(command, {{"Output", "--interval", "TIME", &flags.interval, "Between frames; 1s"},
                         {"Output", "--count", "N", &flags.count, "Frames to show"}});
  AddOutputFlags(command, &flags.json, nullptr);
}

CLI::App& AddRouterCommand(CLI::App& app, const char* name, const char* description,
                           const char* examples, RouterCommandFlags& flags) {
  CLI::App& command = AddCommand(app, name, description, examples);
  AddRouterFlags(command, &flags.router);
  AddOutputFlags(command, &flags.json, nullptr);
  return command;
}

}  // namespace

void AddRouterCommands(CLI::App& app, RouterCommandLine& line) {
  AddRoute(app, line.route);
  AddExperts(app, line.experts);
  AddTop(app, line.top);
  RouterCommandFlags& flags = line.command;
  AddRouterCommand(app, "status", "Show what a router serves and who is missing", kStatusExamples,
                   flags)
      .add_flag("--limits", flags.limits, "Also what callers may ask at most")
      ->group("Output");
  AddTextFlags(AddRouterCommand(app, "health", "Ask whether a router takes requests",
                                kHealthExamples, flags),
               {{"Router", "--name", "NAME", &flags.name, "readiness, liveness or startup"}});
  AddTextFlags(
      AddRouterCommand(app, "wait", "Wait until a router takes requests", kWaitExamples, flags),
      {{"Router", "--timeout", "TIME", &flags.wait_time, "How long to wait; 60s"}});
  AddRouterCommand(app, "explain", "Say how a request went", kExplainExamples, flags)
      .add_option("request_id", flags.request_id, "The request's id")
      ->required();
  CLI::App& drain =
      AddCommand(app, "drain", "Let an expert service finish and leave", kDrainExamples);
  drain.add_option("--expert", flags.expert, "The admin address of the service, HOST:PORT")
      ->required()
      ->group("Expert service");
  AddTlsFlags(drain, "Expert service", &flags.router);
  AddTextFlags(drain, {{"Expert service", "--timeout", "TIME", &flags.wait_time,
                        "How long to wait for it; 60s"}});
  AddOutputFlags(drain, &flags.json, nullptr);
}

std::optional<int> RunRouterCommand(const CLI::App& app, const RouterCommandLine& line) {
  if (app.got_subcommand("route")) return RunRoute(line.route);
  if (app.got_subcommand("experts")) return RunExperts(line.experts);
  if (app.got_subcommand("top")) return RunTop(line.top);
  if (app.got_subcommand("status")) return RunStatus(line.command);
  if (app.got_subcommand("health")) return RunHealth(line.command);
  if (app.got_subcommand("wait")) return RunWait(line.command);
  if (app.got_subcommand("drain")) return RunDrain(line.command);
  if (app.got_subcommand("explain")) return RunExplain(line.command);
  return std::nullopt;
}

}  // namespace moebius
