// SPDX-License-Identifier: Apache-2.0
// Decode steps of a model in this process, with as much telemetry as the command line says, for
// someone who counts its instructions from outside: instructions.py. Prints the CPU time of the
// steps as JSON.
#include <ctime>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "moebius/kernels/tier.h"
#include "moebius/telemetry/expert_load.h"
#include "moebius/telemetry/process_metrics.h"
#include "moebius/telemetry/registry.h"
#include "moebius/telemetry/trace/trace_exporter.h"
#include "node/embedded.h"

namespace moebius {
namespace {

constexpr char kUsage[] =
    "Usage: decode_steps MODEL TIER STEPS DETAIL SCRAPES TRACE_URL\n"
    "  TIER       a kernel tier, or best\n"
    "  DETAIL     off, auto or layer-expert, of each scrape\n"
    "  SCRAPES    how many, after the steps\n"
    "  TRACE_URL  where the call's spans go, or -: it is not traced\n";

struct Arguments {
  std::string model;
  std::optional<Tier> tier;
  int64_t num_steps = 0;
  ExpertDetail detail = ExpertDetail::kOff;
  int64_t num_scrapes = 0;
  std::string trace_url;  // empty: not traced
};

bool ParseArguments(int argc, char** argv, Arguments* arguments) {
  if (argc != 7) return false;
  arguments->model = argv[1];
  if (std::string(argv[2]) != "best") {
    arguments->tier = ParseTier(argv[2]);
    if (!arguments->tier.has_value()) return false;
  }
  if (std::string(argv[6]) != "-") arguments->trace_url = argv[6];
  return absl::SimpleAtoi(argv[3], &arguments->num_steps) &&
         ParseExpertDetail(argv[4], &arguments->detail) &&
         absl::SimpleAtoi(argv[5], &arguments->num_scrapes);
}

double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Null where nothing is traced.
absl::StatusOr<std::unique_ptr<TraceExporter>> MakeExporter(const std::string& url) {
  if (url.empty()) return nullptr;
  const absl::StatusOr<HttpTarget> target = ParseHttpTarget(url, "/v1/traces");
  if (!target.ok()) return target.status();
  TraceExporterOptions options;
  options.target = *target;
  options.resource = {"moebius-router", "bench", "0"};
  options.stop_timeout = absl::Seconds(60);  // everything is slower under valgrind
  return std::make_unique<TraceExporter>(options);
}

absl::Status RunSteps(const Arguments& arguments) {
  const absl::StatusOr<std::unique_ptr<TraceExporter>> exporter = MakeExporter(arguments.trace_url);
  if (!exporter.ok()) return exporter.status();
  EmbeddedOptions options;
  options.model_path = arguments.model;
  options.tier = arguments.tier;
  options.num_threads = 1;
  options.kv_budget_bytes = int64_t{64} << 20;
  options.tracing = {exporter->get(), 1, nullptr};
  absl::StatusOr<std::unique_ptr<EmbeddedNode>> opened = EmbeddedNode::Open(options);
  if (!opened.ok()) return opened.status();
  EmbeddedNode& node = **opened;

  GenerateRequest request;
  request.token_ids = {32, 39, 46, 53};
  request.max_tokens = arguments.num_steps;
  request.ignore_eos = true;
  const double before = CpuSeconds();
  absl::Status status = node.Generate(request, [](const GenerateEvent&) { return true; });
  if (!status.ok()) return status;
  const double seconds = CpuSeconds() - before;

  Registry registry;
  const Registry::Handle collector = registry.AddCollector([&](MetricWriter& writer) {
    WriteProcessMetrics(writer);
    node.WriteMetrics(arguments.detail, writer);
    WriteTraceMetrics(*exporter == nullptr ? TraceFigures() : (*exporter)->figures(), writer);
  });
  size_t scraped_bytes = 0;
  for (int64_t scrape = 0; scrape < arguments.num_scrapes; ++scrape) {
    scraped_bytes += registry.Scrape().size();
  }
  std::cout << "{\"tier\": \"" << node.info().tier << "\", \"cpu_seconds\": " << seconds
            << ", \"scraped_bytes\": " << scraped_bytes << "}\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  moebius::Arguments arguments;
  if (!moebius::ParseArguments(argc, argv, &arguments)) {
    std::cerr << moebius::kUsage;
    return 2;
  }
  const absl::Status status = moebius::RunSteps(arguments);
  if (status.ok()) return 0;
  std::cerr << "error: " << status << "\n";
  return 1;
}
