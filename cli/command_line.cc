// SPDX-License-Identifier: Apache-2.0
// Commands, flags, help, and the words for what is not known.
#include "cli/command_line.h"

#include <cstdio>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cli/balance_command.h"
#include "cli/bench_command.h"
#include "cli/bias_command.h"
#include "cli/capacity_flags.h"
#include "cli/certs_command.h"
#include "cli/command_flags.h"
#include "cli/completion_command.h"
#include "cli/doctor_command.h"
#include "cli/error_output.h"
#include "cli/generate_command.h"
#include "cli/keys_command.h"
#include "cli/model_commands.h"
#include "cli/model_logits.h"
#include "cli/placement_command_line.h"
#include "cli/plan_attention_command.h"
#include "cli/router_command_line.h"
#include "cli/serve_command.h"
#include "cli/unknown_words.h"
#include "cli/version_command.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"

namespace moebius {
namespace {

constexpr char kExamples[] =
    R"(moebius serves mixture-of-experts language models; the same bits on one laptop or a cluster.

Examples:
  moebius generate --model models/demo --prompt "And the king said to them"
  moebius route --model models/demo --prompt "And the king said to them" --layer 3
  moebius model inspect --model models/demo
  moebius doctor)";

constexpr char kGenerateExamples[] =
    R"(Continue a prompt: text on stdout as it comes, figures on stderr.

Examples:
  moebius generate --model models/demo --prompt "And the king said to them"
  moebius generate --model models/demo --prompt "def main" --temperature 0.8 --seed 7
  moebius generate --model models/demo --prompt-file chapter.txt --max-tokens 16 --json
  moebius generate --model models/demo --prompt-ids 256,72,105 --logprobs 3
  moebius generate --router 127.0.0.1:43121 --prompt "And the king said to them"

Without --temperature the model's generation_config.json decides, else the most probable token is
taken. A text prompt gets the model's BOS id first, --prompt-ids gets none. Ctrl-C ends the answer;
what came so far stays, with the finish reason "abort".)";

constexpr char kServeExamples[] =
    R"(Start a router, expert services and attention ranks on this host; Ctrl-C stops them all.

Examples:
  moebius serve --model models/demo
  moebius serve --model models/demo --experts 4 --attention 2
  moebius serve --model models/demo --experts 2 --restart --json
  moebius serve --model models/demo --experts 2 --certs certs

Each process has a port and a log file of its own. One that ends is told with its last lines.)";

constexpr char kModelExamples[] =
    R"(What is in a model's folder, and is it whole; logits for comparison; small models to try.

Examples:
  moebius model inspect --model models/demo
  moebius model verify --model models/demo
  moebius model logits --model models/demo --prompt-ids 256,72,105 --out logits.safetensors
  moebius model make --family qwen3_moe --out build/tiny
  moebius model make --like olmoe-1b-7b --layers 4 --out olmoe-4)";

constexpr char kDoctorExamples[] =
    R"(What this host has, and what would keep Moebius from running well on it.

Examples:
  moebius doctor
  moebius doctor --model models/demo --json
  moebius doctor --listen 0.0.0.0:7410,127.0.0.1:7411,0.0.0.0:7412,0.0.0.0:7413
  moebius doctor --router 127.0.0.1:7413
  moebius doctor --peers 10.0.0.5:7412,10.0.0.6:7412

With --router or --peers it looks at a cluster instead of this host: whether every process answers,
is healthy, and agrees with the others on version, configuration, placement and time.)";

constexpr char kVersionExamples[] =
    R"(Version, own path, and which kernels this CPU can run.

Examples:
  moebius version
  moebius version --json)";

// CLI11 splits flag groups, values and nesting; the values live here until a command runs.
struct CommandLine {
  CLI::App app{"", "moebius"};
  GenerateFlags generate;
  ServeFlags serve;
  ModelInspectOptions inspect;
  ModelVerifyOptions verify;
  ModelLogitsFlags logits;
  ModelMakeOptions make;
  BenchCommandFlags bench;
  PlanAttentionFlags plan_attention;
  RouterCommandLine routers;
  PlacementCommandLine placement;
  BiasFlags bias;
  CertsFlags certs;
  KeysFlags keys;
  CompletionFlags completion;
  DoctorFlags doctor;
  bool json = false;
  bool version = false;
};

void AddGenerate(CommandLine& line) {
  GenerateFlags& flags = line.generate;
  CLI::App& command = AddCommand(line.app, "generate", "Continue a prompt", kGenerateExamples);
  AddModelFlag(command, &flags.model, Presence::kOptional);
  AddRouterFlags(command, &flags.router);
  AddPromptFlags(command, &flags.prompt, &flags.prompt_file, &flags.prompt_ids);
  AddTextFlags(
      command,
      {{"Sampling", "--max-tokens", "N", &flags.max_tokens,
        "Tokens to generate at most; 256, or what fits"},
       {"Sampling", "--temperature", "T", &flags.temperature, "0 takes the most probable token"},
       {"Sampling", "--top-k", "K", &flags.top_k, "Sample from the k most probable; 0 is off"},
       {"Sampling", "--top-p", "P", &flags.top_p,
        "Sample from the most probable that sum to p; 1 is off"},
       {"Sampling", "--min-p", "P", &flags.min_p,
        "Drop tokens below p times the most probable one; 0 is off"},
       {"Sampling", "--repetition-penalty", "R", &flags.repetition_penalty,
        "Of tokens in prompt and answer; 1 is off"},
       {"Sampling", "--presence-penalty", "P", &flags.presence_penalty,
        "Of tokens in the answer, once; 0 is off"},
       {"Sampling", "--frequency-penalty", "P", &flags.frequency_penalty,
        "Of tokens in the answer, each time; 0 is off"},
       {"Sampling", "--seed", "N", &flags.seed,
        "Same seed, same answer; drawn and shown where absent"},
       {"Request", "--request-id", "ID", &flags.request_id,
        "Runs once under this id; drawn where absent"},
       {"Request", "--priority", "N", &flags.priority, "Higher first; 0"},
       {"Request", "--deadline", "TIME", &flags.deadline, "Ends the request then, as 90s"},
       {"Request", "--traceparent", "TEXT", &flags.traceparent,
        "The trace that the request belongs to (W3C), for a router with --trace-endpoint"},
       {"Output", "--logprobs", "N", &flags.logprobs, "Show the n best candidates of each token"},
       {"Machine", "--threads", "N", &flags.threads, "What CPU affinity and cgroup allow"},
       {"Machine", "--tier", "NAME", &flags.tier,
        "portable, avx2, avx512, avx512bf16 or amx; the best that runs here"},
       {"Machine", "--kv-budget", "BYTES", &flags.kv_budget, "Memory of the KV pool, as 512MiB"},
       {"Machine", "--chunk", "N", &flags.chunk, "Prompt tokens in one step, 1 to 512"},
       {"Machine", "--expert-pipelines", "N", &flags.expert_pipelines,
        "Cut the experts into so many parts; the answer stays the same"}});
  AddNumericsFlags(command, NumericsFlagsOf(flags),
                   "bf16: round F16 or F32 weights, which are refused otherwise");
  AddPackedCacheFlags(command, &flags.packed_cache);
  AddCapacityFlags(command, &flags.capacity);
  AddRepeatedFlag(command,
                  {"Sampling", "--stop", "TEXT", nullptr, "End before this text; may be repeated"},
                  &flags.stop);
  AddRepeatedFlag(
      command,
      {"Sampling", "--stop-token-id", "ID", nullptr, "End before this token; may be repeated"},
      &flags.stop_token_ids);
  AddRepeatedFlag(command,
                  {"Sampling", "--logit-bias", "ID:BIAS", nullptr,
                   "Add to a token's logit, as 101:-100; may be repeated"},
                  &flags.logit_bias);
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the model's end marker")
      ->group("Sampling");
  command.add_flag("--json", flags.json, "One JSON object on stdout instead of text")
      ->group("Output");
  command.add_flag("--verbose", flags.verbose, "Also where the time went")->group("Output");
  command.add_flag("--quiet", flags.quiet, "The answer alone: no figures, no progress")
      ->group("Output");
}

void AddServe(CommandLine& line) {
  ServeFlags& flags = line.serve;
  CLI::App& command =
      AddCommand(line.app, "serve", "Start a cluster of processes on this host", kServeExamples);
  AddModelFlag(command, &flags.model, Presence::kRequired);
  AddTextFlags(
      command,
      {{"Cluster", "--experts", "M", &flags.experts, "Expert services; 1"},
       {"Cluster", "--attention", "N", &flags.attention, "Attention ranks; 1"},
       {"Cluster", "--expert-replicas", "R", &flags.replicas,
        "Services that hold each routed expert; 2, or 1 of 1"},
       {"Cluster", "--attention-method", "NAME", &flags.attention_method,
        "How ranks share a prompt: auto, all-gather, ring-pass-kv, ring-pass-q, ulysses or 2d"},
       {"Cluster", "--attention-rates", "RATES", &flags.attention_rates,
        "What auto counts with: measured, or FLOP/s,bytes/s,seconds"},
       {"Cluster", "--placement", "FILE", &flags.placement,
        "Which service holds which expert; docs/placement.md"},
       {"Cluster", "--certs", "DIR", &flags.certs,
        "Mutual TLS between all, with what `moebius certs init` has made"},
       {"Cluster", "--transport", "KIND", &flags.transport, "auto, grpc or shm"},
       {"Cluster", "--listen", "HOST:PORT", &flags.listen,
        "Where experts of other hosts join; 127.0.0.1 and a free port"},
       {"Cluster", "--advertise", "HOST:PORT", &flags.advertise, "How they reach --listen"},
       {"Machine", "--threads", "N", &flags.threads, "What CPU affinity and cgroup allow"},
       {"Machine", "--tier", "NAME", &flags.tier, "Kernels; the best that run here"},
       {"Machine", "--row-budget", "N", &flags.row_budget, "Rows of one step; 512"},
       {"Machine", "--chunk", "N", &flags.chunk, "Prompt tokens in one step"},
       {"Machine", "--kv-budget", "BYTES", &flags.kv_budget,
        "Memory of all KV pools together, as 512MiB"},
       {"Machine", "--log-dir", "DIR", &flags.log_dir, "A file for each process; a new folder"}});
  AddNumericsFlags(command, NumericsFlagsOf(flags), "bf16: round F16 or F32 weights");
  command.add_flag("--insecure", flags.insecure, "--listen beyond this host without --certs")
      ->group("Cluster");
  AddPackedCacheFlags(command, &flags.packed_cache);
  AddCapacityFlags(command, &flags.capacity);
  AddTextFlags(command, {{"Bias", "--bias-balancer", "MODE", &flags.bias_balancer,
                          "off, shadow or on: move the gates' biases; on changes answers"},
                         {"Cluster", "--api-keys", "FILE", &flags.api_keys,
                          "Who may call the router, and how much; made by `moebius keys add`"},
                         {"Tracing", "--trace-endpoint", "URL", &flags.trace_endpoint,
                          "Where the router's spans go, as http://HOST:PORT/v1/traces; no https"},
                         {"Tracing", "--trace-sample-ratio", "R", &flags.trace_sample_ratio,
                          "Share of the calls without a traceparent that are traced; 0.01"},
                         {"Tracing", "--trace-caller-rate", "R", &flags.trace_caller_rate,
                          "Calls a second that are traced because callers say so; 10"},
                         {"Bias", "--bias-file", "FILE", &flags.bias_file,
                          "Where the biases are kept; needed for on"}});
  command.add_flag("--restart", flags.restart, "Start a process again that has died")
      ->group("Cluster");
  command.add_flag("--json", flags.json, "One JSON object a line on stdout for each event");
}

void AddModelLogits(CLI::App& model_command, ModelLogitsFlags& flags) {
  CLI::App& command = *model_command.add_subcommand(
      "logits", "Write logits and chosen experts of given token ids to a safetensors file");
  AddModelFlag(command, &flags.model, Presence::kRequired);
  command.add_option("--prompt-ids", flags.prompt_ids, "Token ids: 256,72,105 or a file")
      ->type_name("IDS")
      ->required();
  command.add_option("--out", flags.out, "The file to write")->type_name("FILE")->required();
  AddTextFlags(
      command,
      {{"Options", "--compute", "WAY", &flags.compute,
        "reference (fp32 throughout, the default) or fast"},
       {"Options", "--group-fill", "FILL", &flags.group_fill, "neg-inf or zero"},
       {"Options", "--config", "FILE", &flags.config, "Instead of the config.json"},
       {"Options", "--dtype", "TYPE", &flags.dtype, "bf16: fast may round weights"},
       {"Options", "--span", "N", &flags.span, "Keys per attention span of fast"},
       {"Options", "--tier", "NAME", &flags.tier, "Kernels of fast"},
       {"Options", "--threads", "N", &flags.threads, "What CPU affinity and cgroup allow"}});
}

void AddModel(CommandLine& line) {
  CLI::App& command =
      AddCommand(line.app, "model", "What is in a model's folder; is it whole; make a small one",
                 kModelExamples);
  AddModelInspect(command, line.inspect);
  AddModelVerify(command, line.verify);
  AddModelLogits(command, line.logits);
  AddModelMake(command, line.make);
}

void AddDoctor(CommandLine& line) {
  CLI::App& command =
      AddCommand(line.app, "doctor", "What this host or a cluster has, and what is wrong with it",
                 kDoctorExamples);
  command.add_option("--model", line.doctor.model, "Also check this model's folder")
      ->type_name("DIR");
  AddTextFlags(command, {{"Options", "--listen", "HOST:PORT,…", &line.doctor.listen,
                          "Also check that processes could listen there"}});
  AddRouterFlags(command, &line.doctor.router);
  AddTextFlags(command, {{"Router", "--peers", "HOST:PORT,…", &line.doctor.peers,
                          "HTTP addresses of processes, beside those that the router lists"}});
  command.add_flag("--json", line.doctor.json, "One JSON object on stdout");
}

void AddVersion(CommandLine& line) {
  CLI::App& command =
      AddCommand(line.app, "version", "Version, own path, and which kernels this CPU can run",
                 kVersionExamples);
  command.add_flag("--json", line.json, "One JSON object on stdout");
}

// A flag that is given again overrides itself, in every command.
void TakeLastOfRepeated(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw) {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
  for (CLI::App* command : app.get_subcommands({})) TakeLastOfRepeated(*command);
}

int UsageError(const absl::Status& status, const std::vector<std::string>& arguments) {
  bool json = false;
  for (const std::string& argument : arguments) json = json || argument == "--json";
  PrintError(status, json ? OutputForm::kJson : OutputForm::kText);
  return kExitUsage;
}

int ReportModel(const absl::Status& status, bool json) {
  if (status.ok()) return kExitOk;
  PrintError(status, json ? OutputForm::kJson : OutputForm::kText);
  return ExitCodeOfOpen(status);
}

int RunModel(const CommandLine& line, const CLI::App& command) {
  if (command.got_subcommand("inspect")) {
    return ReportModel(RunModelInspect(line.inspect), line.inspect.json);
  }
  if (command.got_subcommand("verify")) {
    return ReportModel(RunModelVerify(line.verify), line.verify.json);
  }
  if (command.got_subcommand("logits")) return RunModelLogits(line.logits);
  if (command.got_subcommand("make")) return ReportModel(RunModelMake(line.make), line.make.json);
  std::fputs(command.help().c_str(), stdout);
  return kExitOk;
}

int RunPlan(const CommandLine& line, const CLI::App& command) {
  if (command.got_subcommand("attention")) return RunPlanAttention(line.plan_attention);
  std::fputs(command.help().c_str(), stdout);
  return kExitOk;
}

int RunParsed(const CommandLine& line) {
  if (line.version) return RunVersion(/*json=*/false);
  if (line.app.got_subcommand("generate")) return RunGenerate(line.generate);
  if (line.app.got_subcommand("serve")) return RunServe(line.serve);
  if (const std::optional<int> code = RunRouterCommand(line.app, line.routers)) return *code;
  if (line.app.got_subcommand("placement")) {
    return RunPlacementCommand(*line.app.get_subcommand("placement"), line.placement);
  }
  if (line.app.got_subcommand("bias")) {
    return RunBiasCommand(*line.app.get_subcommand("bias"), line.bias);
  }
  if (line.app.got_subcommand("model")) return RunModel(line, *line.app.get_subcommand("model"));
  if (line.app.got_subcommand("plan")) return RunPlan(line, *line.app.get_subcommand("plan"));
  if (line.app.got_subcommand("bench")) {
    return RunBenchCommand(*line.app.get_subcommand("bench"), line.bench);
  }
  if (line.app.got_subcommand("keys")) {
    return RunKeys(*line.app.get_subcommand("keys"), line.keys);
  }
  if (line.app.got_subcommand("certs")) {
    return RunCerts(*line.app.get_subcommand("certs"), line.certs);
  }
  if (line.app.got_subcommand("doctor")) return RunDoctor(line.doctor);
  if (line.app.got_subcommand("completion")) return RunCompletion(line.app, line.completion);
  if (line.app.got_subcommand("version")) return RunVersion(line.json);
  std::fputs(line.app.help().c_str(), stdout);
  return kExitOk;
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& words) {
  // "moebius help generate" asks what "moebius generate --help" asks.
  std::vector<std::string> arguments = words;
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  CommandLine line;
  SetExamples(line.app, kExamples);
  line.app.add_flag("--version", line.version, "Version, own path and kernels");
  AddGenerate(line);
  AddServe(line);
  AddRouterCommands(line.app, line.routers);
  AddPlacementCommands(line.app, line.placement);
  AddBiasCommands(line.app, line.bias);
  AddCerts(line.app, line.certs);
  AddKeys(line.app, line.keys);
  AddModel(line);
  AddPlan(line.app, line.plan_attention);
  AddBenchCommands(line.app, line.bench);
  AddDoctor(line);
  AddVersion(line);
  AddCompletion(line.app, line.completion);
  TakeLastOfRepeated(line.app);
  if (const absl::Status status = FindUnknownWords(line.app, arguments, "moebius"); !status.ok()) {
    return UsageError(status, arguments);
  }
  try {
    // CLI11 takes the words from the back.
    line.app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& help) {
    return line.app.exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(WithHint(absl::InvalidArgumentError(error.what()),
                               absl::StrCat("see: ", CommandPath(line.app, arguments), " --help")),
                      arguments);
  }
  return RunParsed(line);
}

}  // namespace moebius
