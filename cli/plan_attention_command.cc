// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_attention_command.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/arguments.h"
#include "cli/bench/transport_bench.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"

#include "attention_service/attention_weights.h"
#include "attention_service/kernel_rate.h"
#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "router_service/attention_rule.h"

namespace moebius {
namespace {

constexpr char kPlanExamples[] =
    R"(Say how the attention of a prompt is best shared among ranks, and why, before anything runs.

Examples:
  moebius plan attention --model models/demo --context 4096 --ranks 4 --flops 1e11 --bandwidth 1e9
  moebius plan attention --query-heads 16 --kv-heads 1 --head-dim 128 --new-tokens 1280 --cached-tokens 126720 --ranks 4 --flops 510e12 --bandwidth 26e9 --return-bytes 2 --json

Figures are of one layer. Rates that are not given are measured on this host: the attention kernel
on all cores, and gRPC between two processes.)";

// A number, or what is there already.
template <typename T>
absl::Status Read(const char* name, const std::optional<std::string>& text, T* value) {
  if (!text.has_value()) return absl::OkStatus();
  absl::StatusOr<T> parsed = T{};
  if constexpr (std::is_same_v<T, double>) {
    parsed = ParseNumber(name, *text);
  } else {
    parsed = ParseInteger(name, *text);
  }
  if (!parsed.ok()) return AsUsageError(parsed.status());
  *value = *parsed;
  return absl::OkStatus();
}

absl::Status ReadAll(
    const std::vector<std::pair<const char*, const std::optional<std::string>*>>& names,
    const std::vector<int64_t*>& values) {
  for (size_t i = 0; i < names.size(); ++i) {
    MOEBIUS_RETURN_IF_ERROR(Read(names[i].first, *names[i].second, values[i]));
  }
  return absl::OkStatus();
}

absl::Status ReadSum(const PlanAttentionFlags& flags, CostOptions* options) {
  options->sum =
      flags.return_bytes.has_value() ? AttentionSum::kPerDegree : AttentionSum::kCanonical;
  if (flags.attention_layout.has_value()) {
    const std::optional<AttentionLayout> layout = ParseAttentionLayout(*flags.attention_layout);
    if (!layout.has_value()) {
      return AsUsageError(absl::InvalidArgumentError(
          absl::StrCat("--attention-layout is \"", *flags.attention_layout,
                       "\", it must be zigzag, contiguous or striped")));
    }
    options->layout = *layout;
  }
  if (!flags.attention_sum.has_value()) return absl::OkStatus();
  const std::optional<AttentionSum> sum = ParseAttentionSum(*flags.attention_sum);
  if (!sum.has_value()) {
    return AsUsageError(absl::InvalidArgumentError(absl::StrCat(
        "--attention-sum is \"", *flags.attention_sum, "\", it must be canonical or per-degree")));
  }
  if (*sum == AttentionSum::kCanonical && flags.return_bytes.has_value()) {
    return AsUsageError(absl::InvalidArgumentError(
        "--return-bytes is of --attention-sum per-degree; the canonical sum returns fp32"));
  }
  options->sum = *sum;
  return absl::OkStatus();
}

absl::Status ReadWork(const PlanAttentionFlags& flags, AttentionWork* work) {
  if (!flags.context.has_value() && !flags.new_tokens.has_value()) {
    return AsUsageError(
        absl::InvalidArgumentError("give --context, or --new-tokens and --cached-tokens"));
  }
  int64_t context = -1;
  MOEBIUS_RETURN_IF_ERROR(Read("--context", flags.context, &context));
  MOEBIUS_RETURN_IF_ERROR(Read("--cached-tokens", flags.cached_tokens, &work->cached_tokens));
  work->new_tokens = context - work->cached_tokens;
  MOEBIUS_RETURN_IF_ERROR(Read("--new-tokens", flags.new_tokens, &work->new_tokens));
  if (!flags.context.has_value()) return absl::OkStatus();
  if (!flags.cached_tokens.has_value()) work->cached_tokens = context - work->new_tokens;
  if (work->new_tokens < 0 || work->cached_tokens < 0 || work->keys() != context) {
    return AsUsageError(absl::InvalidArgumentError(
        absl::StrCat("a context of ", context, " tokens is not ", work->cached_tokens,
                     " cached and ", work->new_tokens, " new ones")));
  }
  return absl::OkStatus();
}

// Of a model's folder, or of the flags.
absl::StatusOr<AttentionFacts> ReadHeads(const PlanAttentionFlags& flags,
                                         AttentionPlanInputs* inputs) {
  AttentionFacts facts;
  if (flags.model.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(*flags.model));
    facts = AttentionFactsOf(*checkpoint);
    inputs->heads = HeadsOf(facts.config);
    inputs->options.span = facts.span;
    const bool is_given = flags.attention_sum.has_value() || flags.return_bytes.has_value();
    inputs->options.key_block = facts.key_block;
    if (!is_given) inputs->options.sum = facts.sum;
    const bool is_per_degree = inputs->options.sum == AttentionSum::kPerDegree;
    if (is_per_degree && !flags.attention_layout.has_value()) inputs->options.layout = facts.layout;
  }
  AttentionHeads& heads = inputs->heads;
  if (flags.not_causal) heads.is_causal = false;
  MOEBIUS_RETURN_IF_ERROR(
      ReadAll({{"--query-heads", &flags.query_heads},
               {"--kv-heads", &flags.kv_heads},
               {"--head-dim", &flags.head_dim},
               {"--value-dim", &flags.value_dim},
               {"--bytes", &flags.bytes},
               {"--window", &flags.window},
               {"--span", &flags.span}},
              {&heads.query_heads, &heads.kv_heads, &heads.head_dim, &heads.value_dim,
               &heads.element_bytes, &heads.window, &inputs->options.span}));
  if (flags.span.has_value() || !flags.model.has_value()) {
    inputs->options.key_block = std::min<int64_t>(128, inputs->options.span);
  }
  if (flags.model.has_value()) return facts;
  if (!flags.query_heads.has_value()) {
    return AsUsageError(absl::InvalidArgumentError("give --model, or --query-heads and the rest"));
  }
  if (!flags.kv_heads.has_value()) heads.kv_heads = heads.query_heads;
  if (!flags.value_dim.has_value()) heads.value_dim = heads.head_dim;
  return FactsOfHeads(heads, inputs->options.span);
}

absl::Status MeasureLink(bool wants_latency, RankRates* rates) {
  TransportBenchOptions options;
  options.transports = {"grpc"};
  options.message_bytes = {1 << 20};
  options.duration = absl::Milliseconds(200);
  options.repetitions = 1;
  MOEBIUS_ASSIGN_OR_RETURN(const BenchReport report,
                           RunTransportBench(options, [](int, int, const std::string&) {}));
  for (const BenchResult& result : report.results) {
    if (result.value <= 0) continue;
    if (absl::EndsWith(result.name, ".bandwidth")) rates->bandwidth = result.value;
    // A message takes half a round trip.
    if (wants_latency && result.name == "transport.grpc.round_trip") {
      rates->latency = result.value / 2;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadRates(const PlanAttentionFlags& flags, const AttentionFacts& facts,
                       AttentionPlanInputs* inputs) {
  RankRates& rates = inputs->rates;
  MOEBIUS_RETURN_IF_ERROR(Read("--flops", flags.flops, &rates.flops));
  MOEBIUS_RETURN_IF_ERROR(Read("--bandwidth", flags.bandwidth, &rates.bandwidth));
  MOEBIUS_RETURN_IF_ERROR(Read("--latency", flags.latency, &rates.latency));
  if (!flags.flops.has_value()) {
    Executor executor(std::max(1, DefaultNumThreads()));
    MOEBIUS_ASSIGN_OR_RETURN(rates.flops, MeasureKernelRate(facts, BestKernels(), executor));
    inputs->is_measured = true;
  }
  if (!flags.bandwidth.has_value()) {
    // A latency of nothing is what a link that is given has; a measured link has its own.
    MOEBIUS_RETURN_IF_ERROR(MeasureLink(!flags.latency.has_value(), &rates));
    inputs->is_measured = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionPlanInputs> ReadInputs(const PlanAttentionFlags& flags) {
  AttentionPlanInputs inputs;
  int64_t num_ranks = 1;
  int64_t ulysses_ranks = 0;
  MOEBIUS_RETURN_IF_ERROR(ReadAll({{"--ranks", &flags.ranks},
                                   {"--ulysses-ranks", &flags.ulysses_ranks},
                                   {"--return-bytes", &flags.return_bytes}},
                                  {&num_ranks, &ulysses_ranks, &inputs.options.return_bytes}));
  constexpr int64_t kMaxRanks = 1 << 20;
  inputs.options.num_ranks = static_cast<int32_t>(std::clamp<int64_t>(num_ranks, 0, kMaxRanks));
  inputs.options.ulysses_ranks =
      static_cast<int32_t>(std::clamp<int64_t>(ulysses_ranks, -1, kMaxRanks));
  MOEBIUS_RETURN_IF_ERROR(ReadSum(flags, &inputs.options));
  MOEBIUS_RETURN_IF_ERROR(ReadWork(flags, &inputs.work));
  MOEBIUS_ASSIGN_OR_RETURN(const AttentionFacts facts, ReadHeads(flags, &inputs));
  // Everything but the rates is judged before anything is measured.
  absl::Status status =
      ValidateCostInputs(inputs.heads, inputs.work, {.flops = 1, .bandwidth = 1}, inputs.options);
  if (!status.ok()) return AsUsageError(status);
  MOEBIUS_RETURN_IF_ERROR(ReadRates(flags, facts, &inputs));
  status = ValidateCostInputs(inputs.heads, inputs.work, inputs.rates, inputs.options);
  if (!status.ok()) return AsUsageError(status);
  return inputs;
}

void PrintPlan(const AttentionChoice& choice, const AttentionPlanInputs& inputs) {
  absl::PrintF("%s\n\n", choice.reason);
  absl::PrintF("%-14s %6s %12s %12s %12s %12s\n", "one layer", "ranks", "seconds", "exposed",
               "sent, MB", "memory, MB");
  for (const AttentionMethod method : kAttentionMethods) {
    const MethodCost& cost = choice.cost(method);
    absl::PrintF("%-14s %6d %12.3g %12.3g %12.3g %12.3g%s\n", AttentionMethodName(method),
                 cost.ranks, cost.seconds, cost.exposed_seconds, cost.bytes / 1e6,
                 cost.memory_bytes / 1e6, method == choice.method ? "  <" : "");
  }
  const std::string window =
      inputs.heads.window > 0 ? absl::StrCat(" in windows of ", inputs.heads.window) : "";
  const std::string mask = inputs.heads.is_causal ? "" : ", not causal";
  const std::string sum =
      inputs.options.sum == AttentionSum::kPerDegree
          ? absl::StrCat("per-degree sum, ", AttentionLayoutName(inputs.options.layout))
          : "canonical sum";
  absl::PrintF(
      "\n%d new tokens over %d keys%s%s, %s; a rank: %.3g FLOP/s, %.3g B/s, %.3g s a "
      "message%s\n",
      inputs.work.new_tokens, inputs.work.keys(), window, mask, sum, inputs.rates.flops,
      inputs.rates.bandwidth, inputs.rates.latency, inputs.is_measured ? " (measured here)" : "");
}

}  // namespace

Json AttentionPlanToJson(const AttentionChoice& choice, const AttentionPlanInputs& inputs) {
  std::map<std::string, Json> methods;
  for (const AttentionMethod method : kAttentionMethods) {
    const MethodCost& cost = choice.cost(method);
    methods[std::string(AttentionMethodName(method))] =
        Json::Object({{"seconds", Json::Number(cost.seconds)},
                      {"compute_seconds", Json::Number(cost.compute_seconds)},
                      {"exposed_seconds", Json::Number(cost.exposed_seconds)},
                      {"bytes", Json::Number(cost.bytes)},
                      {"memory_bytes", Json::Number(cost.memory_bytes)},
                      {"ranks", Json::Integer(cost.ranks)},
                      {"ulysses_ranks", Json::Integer(cost.ulysses_ranks)},
                      {"ring_ranks", Json::Integer(cost.ring_ranks)}});
  }
  Json given = Json::Object({{"flops", Json::Number(inputs.rates.flops)},
                             {"bandwidth", Json::Number(inputs.rates.bandwidth)},
                             {"latency", Json::Number(inputs.rates.latency)},
                             {"measured", Json::Boolean(inputs.is_measured)},
                             {"new_tokens", Json::Integer(inputs.work.new_tokens)},
                             {"cached_tokens", Json::Integer(inputs.work.cached_tokens)},
                             {"window", Json::Integer(inputs.heads.window)},
                             {"causal", Json::Boolean(inputs.heads.is_causal)},
                             {"span", Json::Integer(inputs.options.span)}});
  Json json = Json::Object({{"choice", Json::String(AttentionMethodName(choice.method))},
                            {"reason", Json::String(choice.reason)},
                            {"attention_sum", Json::String(AttentionSumName(inputs.options.sum))},
                            {"methods", Json::Object(std::move(methods))},
                            {"inputs", std::move(given)}});
  if (inputs.options.sum == AttentionSum::kPerDegree) {
    json.Set("attention_layout", Json::String(AttentionLayoutName(inputs.options.layout)));
  }
  return json;
}

void AddPlan(CLI::App& app, PlanAttentionFlags& flags) {
  CLI::App& plan =
      AddCommand(app, "plan", "What would be done and why, before anything runs", kPlanExamples);
  CLI::App& command =
      AddCommand(plan, "attention", "How a prompt's attention is best shared", kPlanExamples);
  AddTextFlags(
      command,
      {{"Work", "--model", "DIR", &flags.model, "Model folder: heads and span"},
       {"Work", "--context", "S", &flags.context, "Tokens in all"},
       {"Work", "--new-tokens", "T", &flags.new_tokens, "Tokens that are computed"},
       {"Work", "--cached-tokens", "P", &flags.cached_tokens, "Tokens whose keys are there; 0"},
       {"Heads", "--query-heads", "N", &flags.query_heads, "Without a model"},
       {"Heads", "--kv-heads", "N", &flags.kv_heads, "As many as query heads"},
       {"Heads", "--head-dim", "N", &flags.head_dim, "Elements of a key; 128"},
       {"Heads", "--value-dim", "N", &flags.value_dim, "Elements of a value; as of a key"},
       {"Heads", "--bytes", "N", &flags.bytes, "Bytes of an element; 2"},
       {"Heads", "--window", "N", &flags.window,
        "Keys that a query sees, its own included; 0, all; the model's if all layers have one"},
       {"Cluster", "--ranks", "N", &flags.ranks, "Attention ranks; 1"},
       {"Cluster", "--ulysses-ranks", "U", &flags.ulysses_ranks,
        "Ranks of a group of 2d; the fastest divisor"},
       {"Cluster", "--flops", "RATE", &flags.flops, "FLOP/s of a rank's kernel; measured here"},
       {"Cluster", "--bandwidth", "RATE", &flags.bandwidth, "Bytes/s of a rank; measured here"},
       {"Cluster", "--latency", "SECONDS", &flags.latency,
        "Of a message; 0, or measured with the bandwidth"},
       {"Numerics", "--attention-sum", "WAY", &flags.attention_sum, "canonical or per-degree"},
       {"Numerics", "--attention-layout", "LAYOUT", &flags.attention_layout,
        "Of per-degree: zigzag, contiguous or striped; the model's, or zigzag"},
       {"Numerics", "--span", "N", &flags.span, "Keys of a span; the model's, or 1024"},
       {"Numerics", "--return-bytes", "N", &flags.return_bytes,
        "Bytes of a returned partial's element; implies per-degree; 4"}});
  command
      .add_flag("--not-causal", flags.not_causal,
                "Every query sees the whole prompt; the model's, or causal")
      ->group("Heads");
  command.add_flag("--json", flags.json, "One JSON object on stdout");
}

int RunPlanAttention(const PlanAttentionFlags& flags) {
  const absl::StatusOr<AttentionPlanInputs> inputs = ReadInputs(flags);
  if (!inputs.ok()) {
    PrintError(inputs.status(), flags.json ? OutputForm::kJson : OutputForm::kText);
    return ExitCodeOfOpen(inputs.status());
  }
  const AttentionChoice choice =
      ChooseAttention(inputs->heads, inputs->work, inputs->rates, inputs->options);
  if (flags.json) {
    absl::PrintF("%s\n", AttentionPlanToJson(choice, *inputs).ToCanonicalText());
  } else {
    PrintPlan(choice, *inputs);
  }
  return kExitOk;
}

}  // namespace moebius
