// SPDX-License-Identifier: Apache-2.0
#include "cli/balance_command.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/arguments.h"
#include "cli/bench/balance_bench.h"
#include "cli/bench/report.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/float_environment.h"
#include "moebius/base/status.h"
#include "moebius/model/checkpoint.h"
#include "node/embedded.h"
#include "router_service/router_weights.h"

namespace moebius {
namespace {

constexpr uint64_t kSeed = 1;
constexpr int64_t kUpdates = 600, kMaxUpdates = 100'000;
// Of the synthetic gates: softmax scores are some 1/E, so that many experts show what γ does.
constexpr int32_t kSigmoidExperts = 32, kSigmoidTopK = 4;
constexpr int32_t kSoftmaxExperts = 128, kSoftmaxTopK = 8;
constexpr int kWindows = 2;  // different ones, taken in turns
constexpr int64_t kMaxPromptBytes = int64_t{1} << 20;
// What a window of 2,000 assignments per expert can show.
constexpr double kBalanced = 0.1;

struct BalanceRun {
  BalanceTraffic traffic;
  BiasOptions options;
};

absl::StatusOr<BiasOptions> ParseOptions(const BenchBalanceFlags& flags) {
  BiasOptions options;
  if (flags.gamma.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const double gamma, ParseNumber("--gamma", *flags.gamma));
    options.gamma = static_cast<float>(gamma);
  }
  MOEBIUS_RETURN_IF_ERROR(ValidateBiasOptions(options));
  return options;
}

absl::StatusOr<int> ParseUpdates(const BenchBalanceFlags& flags) {
  if (!flags.updates.has_value()) return static_cast<int>(kUpdates);
  MOEBIUS_ASSIGN_OR_RETURN(const int64_t updates, ParseInteger("--updates", *flags.updates));
  if (updates < 1 || updates > kMaxUpdates) {
    return absl::InvalidArgumentError(
        absl::StrCat("--updates is ", updates, ", not in [1, ", kMaxUpdates, "]"));
  }
  return static_cast<int>(updates);
}

// What the gates of a model say of one text, layer by layer: the same rows in every window. The
// logits are those of the unchanged model, so what later layers would make of other experts in
// earlier ones is left out.
absl::Status AddModel(const BenchBalanceFlags& flags, const BiasOptions& options,
                      std::vector<BalanceRun>* runs) {
  if (!flags.prompt_file.has_value()) {
    return WithHint(absl::InvalidArgumentError("--model needs a text"), "give --prompt-file FILE");
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadInput(*flags.prompt_file, kMaxPromptBytes));
  MOEBIUS_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(flags.model));
  EmbeddedOptions node_options;
  node_options.model_path = flags.model;
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<EmbeddedNode> node,
                           EmbeddedNode::Open(node_options));
  if (node->tokenizer() == nullptr) {
    return absl::FailedPreconditionError("the model has no tokenizer that this build reads");
  }
  const std::vector<int64_t> ids = node->tokenizer()->Encode(text);
  MOEBIUS_ASSIGN_OR_RETURN(const ForcedLogits forced, node->TeacherForced(ids, {0}));
  MOEBIUS_ASSIGN_OR_RETURN(const RouterWeights weights,
                           RouterWeights::Load(*checkpoint, BestKernels()));
  for (const ForcedLayer& layer : forced.layers) {
    BalanceRun& run = runs->emplace_back();
    run.options = options;
    run.options.unit = BiasUnitOf(node->config().gate.score_function);
    run.traffic.name = absl::StrCat("layer ", layer.layer);
    run.traffic.config = node->config().gate;
    const auto bias = weights.gates[static_cast<size_t>(layer.layer)].bias;
    run.traffic.base.assign(bias.begin(), bias.end());
    RowBatch<float>& window =
        run.traffic.windows.emplace_back(forced.num_tokens, forced.num_experts);
    std::copy(layer.gate_logits.begin(), layer.gate_logits.end(), window.rows().row(0));
  }
  return absl::OkStatus();
}

void AddSynthetic(const BiasOptions& options, std::vector<BalanceRun>* runs) {
  const auto add = [&](ScoreFunction function, BiasUnit unit, const char* suffix) {
    const bool sigmoid = function == ScoreFunction::kSigmoid;
    BalanceRun& run = runs->emplace_back();
    run.traffic = SkewedTraffic(function, sigmoid ? kSigmoidExperts : kSoftmaxExperts,
                                sigmoid ? kSigmoidTopK : kSoftmaxTopK, kWindows, kSeed);
    run.traffic.name += suffix;
    run.options = options;
    run.options.unit = unit;
  };
  add(ScoreFunction::kSigmoid, BiasUnit::kScore, "");
  add(ScoreFunction::kSoftmax, BiasUnit::kScore, ", gamma as it is");
  add(ScoreFunction::kSoftmax, BiasUnit::kSpread, ", gamma scaled");
}

// One result for the start and one for the end, which has a target where a window can show it.
void AddResults(const BalanceCurve& curve, bool has_target, BenchReport* report) {
  const std::string name = absl::StrCat("balance.", curve.name);
  const size_t tail = std::max<size_t>(1, curve.max_violation.size() / 10);
  const std::vector<double> last(curve.max_violation.end() - static_cast<std::ptrdiff_t>(tail),
                                 curve.max_violation.end());
  const std::vector<double> limit(last.size(), kBalanced);
  report->results.push_back(Summarize(name + ".max_vio_before", "ratio", BenchSense::kTime,
                                      {curve.max_violation.front()}));
  BenchResult after = Summarize(name + ".max_vio_after", "ratio", BenchSense::kTime, last);
  if (has_target) CompareWith("MaxVio of a balanced gate", last, limit, 1.0, &after);
  report->results.push_back(std::move(after));
  report->results.push_back(
      Summarize(name + ".rows_changed", "ratio", BenchSense::kTime, {curve.changed.back()}));
}

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

void PrintTable(const std::vector<BalanceCurve>& curves) {
  absl::PrintF("%-28s %14s %14s %14s %12s\n", "gate", "MaxVio before", "MaxVio after",
               "rows changed", "|bias - b0|");
  for (const BalanceCurve& curve : curves) {
    absl::PrintF("%-28s %14.2f %14.3f %12.0f %% %12.3f\n", curve.name, curve.max_violation.front(),
                 curve.max_violation.back(), 100 * curve.changed.back(), curve.max_delta);
  }
}

absl::Status Run(const BenchBalanceFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const BiasOptions options, ParseOptions(flags));
  MOEBIUS_ASSIGN_OR_RETURN(const int updates, ParseUpdates(flags));
  std::vector<BalanceRun> runs;
  if (flags.model.empty()) {
    AddSynthetic(options, &runs);
  } else {
    MOEBIUS_RETURN_IF_ERROR(AddModel(flags, options, &runs));
  }
  const ScopedFloatEnvironment environment;
  Progress progress("balancing", flags.quiet || flags.json);
  std::vector<BalanceCurve> curves;
  for (const BalanceRun& run : runs) {
    progress.Update(static_cast<int64_t>(curves.size()), static_cast<int64_t>(runs.size()),
                    run.traffic.name);
    curves.push_back(RunBalance(run.traffic, run.options, updates));
  }
  progress.End();
  BenchReport report = MakeBenchReport(kSeed);
  for (size_t i = 0; i < curves.size(); ++i) {
    AddResults(curves[i], /*has_target=*/flags.model.empty() && i == 0, &report);
  }
  if (flags.svg_out.has_value()) {
    MOEBIUS_RETURN_IF_ERROR(Write(*flags.svg_out, DrawCurves(curves)));
  }
  const Json json = ReportToJson(report);
  if (!flags.json_out.empty()) {
    MOEBIUS_RETURN_IF_ERROR(Write(flags.json_out, json.ToPrettyText() + "\n"));
  }
  if (flags.json) {
    absl::PrintF("%s\n", json.ToCanonicalText());
  } else {
    PrintTable(curves);
  }
  return absl::OkStatus();
}

}  // namespace

CLI::App* AddBenchBalance(CLI::App& bench_command, BenchBalanceFlags& flags) {
  CLI::App* command = bench_command.add_subcommand(
      "balance", "How a gate's biases even out the load of its experts, update by update");
  AddModelFlag(*command, &flags.model, Presence::kOptional);
  AddTextFlags(*command, {{"Traffic", "--prompt-file", "FILE", &flags.prompt_file,
                           "With --model: all its prompts"},
                          {"Balancer", "--updates", "N", &flags.updates, "Windows; 600"},
                          {"Balancer", "--gamma", "G", &flags.gamma, "Step of a bias; 0.001"},
                          {"Output", "--svg-out", "FILE", &flags.svg_out, "Also draw the curves"}});
  command->add_option("--json-out", flags.json_out, "Also write the report to this file")
      ->type_name("FILE");
  command->add_flag("--json", flags.json, "The report as one JSON object on stdout");
  command->add_flag("--quiet", flags.quiet, "No progress on stderr");
  return command;
}

int RunBenchBalance(const BenchBalanceFlags& flags) {
  const absl::Status status = Run(flags);
  if (status.ok()) return kExitOk;
  PrintError(status, flags.json ? OutputForm::kJson : OutputForm::kText);
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

}  // namespace moebius
