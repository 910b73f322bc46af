// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_command.h"

#include <cstdio>
#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/bench/attention_bench.h"
#include "cli/bench/cluster_bench.h"
#include "cli/bench/expert_bench.h"
#include "cli/bench/load_bench.h"
#include "cli/bench/plan_bench.h"
#include "cli/bench/report.h"
#include "cli/bench/transport_bench.h"
#include "cli/bench_output.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"
#include "cli/terminal.h"

#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr char kBenchExamples[] =
    R"(Figures of this host beside their ceilings, measured in the same run.

Examples:
  moebius bench experts
  moebius bench attention
  moebius bench cluster --model models/demo
  moebius bench load --model models/demo
  moebius bench transport --transports grpc --sizes 4KiB,1MiB --seconds 1
  moebius bench plan
  moebius bench balance --svg-out balance.svg
  moebius bench transport --json-out before.json
  moebius bench transport --compare before.json after.json)";

constexpr char kTransportExamples[] =
    R"(Bandwidth, CPU and round trips of each transport between two processes.

Examples:
  moebius bench transport
  moebius bench transport --transports grpc --sizes 4KiB,1MiB --seconds 1
  moebius bench transport --json-out before.json
  moebius bench transport --compare before.json after.json)";

constexpr char kAttentionExamples[] =
    R"(One layer's attention: a prompt beside a peer's GEMM, a generated row beside read bandwidth.

Examples:
  moebius bench attention
  moebius bench attention --tokens 2048 --keys 8192 --tiers all --seconds 0.2)";

constexpr char kExpertsExamples[] =
    R"(One MoE layer's experts for 1 to 512 rows, beside what memory and arithmetic allow.

Examples:
  moebius bench experts
  moebius bench experts --tiers all --peer build/release/bin/onednn_peer
  moebius bench experts --hidden 7168 --intermediate 2048 --experts 32 --rows 1,8,32
  moebius bench experts --compare before.json after.json

A peer is a program that is asked one question a line: bench/README.md has them. The first that
answers "gemm" gives the ceiling of arithmetic; without one, calls of more than 32 rows have none.)";

constexpr char kClusterExamples[] =
    R"(A model on a cluster of processes of this host, beside the same model in one process.

Examples:
  moebius bench cluster --model models/demo
  moebius bench cluster --model models/demo --transports shm --repetitions 5
  moebius bench cluster --model olmoe-4 --experts 2 --attention 1 --json-out report.json)";

constexpr char kLoadExamples[] =
    R"(Opening a model from its checkpoint, and from a warm packed cache.

Examples:
  moebius bench load --model models/demo
  moebius model make --like demo --scale 50 --out demo-50
  moebius bench load --model demo-50 --repetitions 9 --json-out report.json)";

constexpr char kBalanceExamples[] =
    R"(How a gate's biases even out the load of its experts, update by update.

Examples:
  moebius bench balance --svg-out balance.svg
  moebius bench balance --model models/demo --prompt-file text.txt)";

constexpr char kPlanExamples[] =
    R"(What a router pays for each assignment to plan a layer's dispatch and combine its replies.

Examples:
  moebius bench plan
  moebius bench plan --rows 512 --services 8 --hidden 2048)";

int ReportStatus(const absl::Status& status, bool json, ExitCode code) {
  if (status.ok()) return kExitOk;
  PrintError(status, json ? OutputForm::kJson : OutputForm::kText);
  return code;
}

using Progressed = std::function<void(int done, int total, const std::string& next)>;

absl::Status Measure(
    const BenchFlags& flags, const std::string& header,
    const std::function<absl::StatusOr<BenchReport>(const Progressed& progress)>& run) {
  Progress progress("measuring", flags.quiet);
  const absl::StatusOr<BenchReport> report =
      run([&progress](int done, int total, const std::string& next) {
        progress.Update(done, total, next);
      });
  progress.End();
  if (!report.ok()) return report.status();
  if (!flags.json_out.empty()) MOEBIUS_RETURN_IF_ERROR(WriteReport(flags.json_out, *report));
  if (flags.json) {
    absl::PrintF("%s\n", ReportToJson(*report).ToCanonicalText());
  } else {
    PrintReport(*report, header);
  }
  return absl::OkStatus();
}

// Reads the flags of a benchmark and measures, or compares two reports.
template <typename Flags, typename Run>
int MeasureOrCompare(const Flags& flags, Run run) {
  const BenchFlags& common = flags.common;
  if (!common.compare.empty()) {
    return ReportStatus(PrintComparison(common.compare[0], common.compare[1]), common.json,
                        kExitUsage);
  }
  const auto options = ParseOptions(flags);
  if (!options.ok()) return ReportStatus(options.status(), common.json, kExitUsage);
  const std::string header = absl::StrCat(
      options->repetitions, options->repetitions == 1 ? " repetition" : " repetitions");
  return ReportStatus(
      Measure(common, header, [&](const Progressed& progress) { return run(*options, progress); }),
      common.json, kExitFailed);
}

enum class Durations { kNone, kGiven };

void AddCommonFlags(CLI::App& command, BenchFlags& flags, Durations durations) {
  if (durations == Durations::kGiven) {
    command.add_option("--seconds", flags.seconds, "Of one measurement")->type_name("S");
  }
  command
      .add_option("--repetitions", flags.repetitions,
                  "Measurements of each, beside their baselines")
      ->type_name("N");
  command.add_option("--json-out", flags.json_out, "Also write the report to this file")
      ->type_name("FILE");
  command
      .add_option("--compare", flags.compare,
                  "Measure nothing: show what changed between two reports")
      ->type_name("FILE")
      ->expected(2);
  command.add_flag("--json", flags.json, "The report as one JSON object on stdout");
  command.add_flag("--quiet", flags.quiet, "No progress on stderr");
}

void AddText(CLI::App& command, const char* name, const char* type, std::string& value,
             const std::string& description) {
  command.add_option(name, value, description)->type_name(type);
}

void AddTransport(CLI::App& bench, BenchTransportFlags& flags) {
  CLI::App& command = AddCommand(
      bench, "transport", "Bandwidth, CPU and round trips of each transport between two processes",
      kTransportExamples);
  AddText(command, "--transports", "KINDS", flags.transports,
          absl::StrCat("Which; ", absl::StrJoin(TransportBenchKinds(), ","), " where absent"));
  AddText(command, "--sizes", "SIZES", flags.sizes,
          "Bytes of a message, multiples of 16; 64,4KiB,64KiB,1MiB where absent");
  command.add_option("--serve", flags.serve)->group("");
  AddCommonFlags(command, flags.common, Durations::kGiven);
}

void AddExperts(CLI::App& bench, BenchExpertsFlags& flags) {
  CLI::App& command = AddCommand(
      bench, "experts", "Expert kernels beside the roofline of this host", kExpertsExamples);
  AddText(command, "--rows", "LIST", flags.rows, "Rows of a call; 1,2,4,8,16,32,128,512");
  AddText(command, "--tiers", "LIST", flags.tiers, "Kernels, or all; the best that run here");
  AddText(command, "--dtype", "TYPE", flags.dtype, "bf16, or fp8 beside bf16; bf16");
  AddText(command, "--hidden", "N", flags.hidden, "Hidden size; 2048");
  AddText(command, "--intermediate", "N", flags.intermediate, "Width of an expert; 1024");
  AddText(command, "--experts", "N", flags.experts, "Experts of the layer; 64");
  AddText(command, "--top-k", "N", flags.top_k, "Experts of a row; 8");
  AddText(command, "--threads", "N", flags.threads, "What CPU affinity and cgroup allow");
  AddRepeatedFlag(command,
                  {"", "--peer", "CMD", nullptr, "A program to compare with; may be repeated"},
                  &flags.peers);
  AddCommonFlags(command, flags.common, Durations::kGiven);
}

void AddAttention(CLI::App& bench, BenchAttentionFlags& flags) {
  CLI::App& command = AddCommand(
      bench, "attention", "Attention kernels beside a GEMM and read bandwidth", kAttentionExamples);
  AddText(command, "--tokens", "N", flags.tokens, "Of the prompt; 8192");
  AddText(command, "--keys", "N", flags.keys, "That a generated row sees; 32768");
  AddText(command, "--query-heads", "N", flags.query_heads, "Query heads; 16");
  AddText(command, "--kv-heads", "N", flags.kv_heads, "KV heads; 4");
  AddText(command, "--head-dim", "N", flags.head_dim, "Elements of a head; 128");
  AddText(command, "--tiers", "LIST", flags.tiers, "Kernels, or all; the best that run here");
  AddText(command, "--threads", "N", flags.threads, "What CPU affinity and cgroup allow");
  AddRepeatedFlag(command, {"", "--peer", "CMD", nullptr, "A program whose GEMM is the ceiling"},
                  &flags.peers);
  AddCommonFlags(command, flags.common, Durations::kGiven);
}

void AddCluster(CLI::App& bench, BenchClusterFlags& flags) {
  CLI::App& command =
      AddCommand(bench, "cluster", "A cluster of processes beside one process, on this host",
                 kClusterExamples);
  command.add_option("--model", flags.model, "Model folder: config.json and safetensors")
      ->type_name("DIR");
  AddText(command, "--transports", "KINDS", flags.transports, "Which; grpc,shm where absent");
  AddText(command, "--experts", "M", flags.experts, "Expert services; 4");
  AddText(command, "--attention", "N", flags.attention, "Attention ranks; 2");
  AddText(command, "--threads", "N", flags.threads, "What CPU affinity and cgroup allow");
  AddText(command, "--rows", "N", flags.rows, "Of the prompt; 512");
  AddText(command, "--tokens", "N", flags.tokens, "Of the answer; 64");
  AddCommonFlags(command, flags.common, Durations::kNone);
}

void AddLoad(CLI::App& bench, BenchLoadFlags& flags) {
  CLI::App& command = AddCommand(
      bench, "load", "Opening a model, cold and from a warm packed cache", kLoadExamples);
  command.add_option("--model", flags.model, "Model folder: config.json and safetensors")
      ->type_name("DIR");
  AddText(command, "--packed-cache", "DIR", flags.packed_cache, "A new one, removed at the end");
  AddText(command, "--threads", "N", flags.threads, "What CPU affinity and cgroup allow");
  AddCommonFlags(command, flags.common, Durations::kNone);
}

void AddPlan(CLI::App& bench, BenchPlanFlags& flags) {
  CLI::App& command =
      AddCommand(bench, "plan", "Planning and combining, for each assignment", kPlanExamples);
  AddText(command, "--rows", "N", flags.rows, "Rows of a step; 4096");
  AddText(command, "--experts", "N", flags.experts, "Routed experts of the layer; 256");
  AddText(command, "--top-k", "N", flags.top_k, "Experts of a row; 8");
  AddText(command, "--services", "N", flags.services, "Expert services; 32");
  AddText(command, "--hidden", "N", flags.hidden, "Values of a row; 64");
  AddCommonFlags(command, flags.common, Durations::kGiven);
}

}  // namespace

void AddBenchCommands(CLI::App& app, BenchCommandFlags& flags) {
  CLI::App& bench =
      AddCommand(app, "bench", "Figures of this host beside their ceilings", kBenchExamples);
  AddExperts(bench, flags.experts);
  AddAttention(bench, flags.attention);
  AddCluster(bench, flags.cluster);
  AddLoad(bench, flags.load);
  AddTransport(bench, flags.transport);
  AddPlan(bench, flags.plan);
  SetExamples(*AddBenchBalance(bench, flags.balance), kBalanceExamples);
}

int RunBenchCommand(const CLI::App& bench_command, const BenchCommandFlags& flags) {
  if (bench_command.got_subcommand("transport")) {
    const BenchTransportFlags& transport = flags.transport;
    if (!transport.serve.empty()) {
      return ReportStatus(ServeTransportBench(transport.serve), transport.common.json, kExitFailed);
    }
    return MeasureOrCompare(transport, RunTransportBench);
  }
  if (bench_command.got_subcommand("experts")) {
    return MeasureOrCompare(flags.experts, RunExpertBench);
  }
  if (bench_command.got_subcommand("attention")) {
    return MeasureOrCompare(flags.attention, RunAttentionBench);
  }
  if (bench_command.got_subcommand("cluster")) {
    return MeasureOrCompare(flags.cluster, RunClusterBench);
  }
  if (bench_command.got_subcommand("load")) return MeasureOrCompare(flags.load, RunLoadBench);
  if (bench_command.got_subcommand("balance")) return RunBenchBalance(flags.balance);
  if (bench_command.got_subcommand("plan")) return MeasureOrCompare(flags.plan, RunPlanBench);
  std::fputs(bench_command.help().c_str(), stdout);
  return kExitOk;
}

}  // namespace moebius
