// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/cluster_bench.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/bench/peer_process.h"

#include "moebius/api/generate.h"
#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"
#include "moebius/client/client.h"
#include "moebius/model/json.h"
#include "moebius/tensor/bf16.h"
#include "node/embedded.h"

namespace moebius {
namespace {

constexpr uint64_t kSeed = 1;
constexpr int64_t kDecodePrompt = 8;
constexpr absl::Duration kLoadPatience = absl::Minutes(20);
constexpr char kOneProcess[] = "one process";

// Experts from this size on take longer than the messages about them: layers of smaller ones are
// shown beside one process, but have no target.
constexpr int64_t kLargeExpertBytes = 4 << 20;

// What a transport promises.
struct Targets {
  std::optional<double> decode_layer;   // a MoE layer of one row, as a part of one process's speed
  std::optional<double> prefill_layer;  // of many rows
  double outside_seconds = 0;
};
Targets TargetsOf(const std::string& transport, const ModelConfig& config) {
  const bool is_shm = transport == "shm";
  Targets targets;
  targets.outside_seconds = is_shm ? 120e-6 : 250e-6;
  if (config.ExpertWeightBytes() < kLargeExpertBytes) return targets;
  targets.decode_layer = is_shm ? 0.95 : 0.85;
  targets.prefill_layer = is_shm ? 0.95 : 0.90;
  return targets;
}

// What one repetition saw, in seconds and bytes of a token, a prompt or a layer.
struct Sample {
  double decode_token = 0;
  double prefill = 0;
  double decode_layer = 0;   // plan, experts and combine of one row
  double prefill_layer = 0;  // of a prompt's rows
  double row_bytes = 0;      // of one token, to experts and back, in all layers
};

// Runs a request to its end and returns the last event.
using Generate = absl::FunctionRef<absl::StatusOr<GenerateEvent>(const GenerateRequest&)>;

class ClusterBench {
 public:
  ClusterBench(const ClusterBenchOptions& options,
               const std::function<void(int done, int total, const std::string& next)>& progress)
      : options_(options), progress_(progress) {}

  absl::Status Run();
  const std::vector<BenchResult>& results() const { return results_; }

 private:
  absl::Status Open();
  absl::Status RunTransport(const std::string& transport);
  absl::StatusOr<Sample> Measure(const std::string& what, Generate generate);
  absl::StatusOr<Sample> MeasureHere();
  GenerateRequest RequestOf(int64_t prompt_tokens, int64_t max_tokens) const;
  void Report(const std::string& transport, const std::vector<Sample>& cluster,
              const std::vector<Sample>& here);
  void AddTime(const std::string& name, const std::vector<double>& values,
               const std::string& baseline, const std::vector<double>& baselines,
               std::optional<double> target);

  const ClusterBenchOptions& options_;
  const std::function<void(int done, int total, const std::string& next)>& progress_;
  std::unique_ptr<EmbeddedNode> node_;
  int64_t prefill_rows_ = 0;
  int64_t decode_tokens_ = 0;
  std::vector<BenchResult> results_;
  int done_ = 0;
  int total_ = 0;
};

absl::Status ClusterBench::Open() {
  EmbeddedOptions options;
  options.model_path = options_.model;
  options.num_threads = options_.num_threads;
  MOEBIUS_ASSIGN_OR_RETURN(node_, EmbeddedNode::Open(options));
  const int64_t context = node_->info().max_positions;
  prefill_rows_ = std::min(options_.prefill_rows, context - 1);
  decode_tokens_ = std::min(options_.decode_tokens, context - kDecodePrompt);
  if (prefill_rows_ < 1 || decode_tokens_ < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.model, ": a context of ", context, " positions is too short"));
  }
  return absl::OkStatus();
}

GenerateRequest ClusterBench::RequestOf(int64_t prompt_tokens, int64_t max_tokens) const {
  GenerateRequest request;
  Random random(kSeed);
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    request.token_ids.push_back(
        static_cast<int64_t>(random.Below(static_cast<uint64_t>(node_->config().vocab_size))));
  }
  request.max_tokens = max_tokens;
  request.temperature = 0;
  request.ignore_eos = true;
  return request;
}

// Seconds of a layer's way through the experts, the router's part included.
double LayerSeconds(const GenerateTiming& timing, int64_t num_layers) {
  const StepFigures& figures = timing.figures;
  const double steps = static_cast<double>(timing.prefill_steps + timing.decode_steps);
  return (figures.plan_seconds + figures.expert_seconds + figures.combine_seconds) /
         (steps * static_cast<double>(num_layers));
}

absl::StatusOr<Sample> ClusterBench::Measure(const std::string& what, Generate generate) {
  const ModelConfig& config = node_->config();
  if (progress_ != nullptr) progress_(done_++, total_, what);
  Sample sample;
  MOEBIUS_ASSIGN_OR_RETURN(const GenerateEvent prompt, generate(RequestOf(prefill_rows_, 1)));
  sample.prefill = prompt.timing.prefill_seconds;
  sample.prefill_layer = LayerSeconds(prompt.timing, config.num_layers);
  MOEBIUS_ASSIGN_OR_RETURN(const GenerateEvent answer,
                           generate(RequestOf(kDecodePrompt, decode_tokens_)));
  const GenerateTiming& timing = answer.timing;
  sample.decode_token = timing.decode_seconds / static_cast<double>(timing.decode_steps);
  sample.decode_layer = LayerSeconds(timing, config.num_layers);
  const double tokens = static_cast<double>(kDecodePrompt + timing.decode_steps);
  sample.row_bytes =
      static_cast<double>((timing.figures.dispatched_rows + timing.figures.reply_rows) *
                          config.hidden_size) *
      sizeof(Bf16) / tokens;
  return sample;
}

absl::StatusOr<Sample> ClusterBench::MeasureHere() {
  return Measure(kOneProcess, [this](const GenerateRequest& request) {
    GenerateEvent last;
    const absl::Status status = node_->Generate(request, [&last](const GenerateEvent& event) {
      last = event;
      return true;
    });
    return status.ok() ? absl::StatusOr<GenerateEvent>(std::move(last)) : status;
  });
}

absl::StatusOr<std::string> RouterOf(const std::string& ready_line) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json ready, Json::Parse(ready_line, "moebius serve"));
  const Json* const router = ready.Find("router");
  if (router == nullptr || router->kind() != Json::Kind::kString) {
    return absl::UnavailableError(absl::StrCat("moebius serve said: ", ready_line));
  }
  return router->string();
}

absl::Status ClusterBench::RunTransport(const std::string& transport) {
  std::vector<std::string> words = {"serve",       "--json",
                                    "--model",     options_.model,
                                    "--transport", transport,
                                    "--experts",   absl::StrCat(options_.num_experts),
                                    "--attention", absl::StrCat(options_.num_attention)};
  if (options_.num_threads > 0) {
    words.insert(words.end(), {"--threads", absl::StrCat(options_.num_threads)});
  }
  PeerProcessOptions process_options;
  process_options.end = PeerEnd::kByTermination;
  process_options.start_patience = kLoadPatience;
  process_options.is_silent = true;
  absl::StatusOr<std::unique_ptr<PeerProcess>> serve = PeerProcess::Start(words, process_options);
  if (!serve.ok()) {
    return WithHint(WithContext(serve.status(), "the cluster"),
                    absl::StrCat("what it says: moebius ", absl::StrJoin(words, " ")));
  }
  ClientOptions client_options;
  MOEBIUS_ASSIGN_OR_RETURN(client_options.target, RouterOf((*serve)->line()));
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Make(client_options));
  const auto generate = [&client](const GenerateRequest& request) {
    GenerateEvent last;
    const absl::Status status = client->Generate(request, [&last](const GenerateEvent* event) {
      if (event != nullptr) last = *event;
      return true;
    });
    return status.ok() ? absl::StatusOr<GenerateEvent>(std::move(last)) : status;
  };
  std::vector<Sample> cluster, here;
  // The first one warms up; the order alternates.
  for (int repetition = -1; repetition < options_.repetitions; ++repetition) {
    const bool cluster_first = repetition % 2 == 0;
    Sample of_cluster, of_here;
    for (const bool is_cluster : {cluster_first, !cluster_first}) {
      if (is_cluster) {
        MOEBIUS_ASSIGN_OR_RETURN(of_cluster, Measure(transport, generate));
      } else {
        MOEBIUS_ASSIGN_OR_RETURN(of_here, MeasureHere());
      }
    }
    if (repetition < 0) continue;
    cluster.push_back(of_cluster);
    here.push_back(of_here);
  }
  Report(transport, cluster, here);
  return absl::OkStatus();
}

void ClusterBench::AddTime(const std::string& name, const std::vector<double>& values,
                           const std::string& baseline, const std::vector<double>& baselines,
                           std::optional<double> target) {
  BenchResult result = Summarize(name, "s", BenchSense::kTime, values);
  CompareWith(baseline, values, baselines, target, &result);
  results_.push_back(std::move(result));
}

void ClusterBench::Report(const std::string& transport, const std::vector<Sample>& cluster,
                          const std::vector<Sample>& here) {
  const auto values = [](const std::vector<Sample>& samples, double Sample::*field) {
    std::vector<double> list;
    for (const Sample& sample : samples) list.push_back(sample.*field);
    return list;
  };
  const Targets targets = TargetsOf(transport, node_->config());
  const auto add = [&](const std::string& name, double Sample::*field,
                       std::optional<double> target) {
    AddTime(name, values(cluster, field), kOneProcess, values(here, field), target);
  };
  const std::string layer = absl::StrCat("moe_layer.cluster.", transport, ".T=");
  add(layer + "1", &Sample::decode_layer, targets.decode_layer);
  add(absl::StrCat(layer, prefill_rows_), &Sample::prefill_layer, targets.prefill_layer);
  const std::string name = absl::StrCat("cluster.", transport);
  add(name + ".decode_token", &Sample::decode_token, std::nullopt);
  add(absl::StrCat(name, ".prefill.T=", prefill_rows_), &Sample::prefill, std::nullopt);

  std::vector<double> outside;
  for (size_t i = 0; i < cluster.size(); ++i) {
    outside.push_back((cluster[i].decode_token - here[i].decode_token) /
                      static_cast<double>(node_->config().num_layers));
  }
  AddTime(name + ".outside_kernels", outside,
          absl::StrCat("limit of ", targets.outside_seconds * 1e6, " µs a layer and token"),
          std::vector<double>(outside.size(), targets.outside_seconds), 1.0);

  const std::vector<double> bytes = values(cluster, &Sample::row_bytes);
  BenchResult wire = Summarize(name + ".row_bytes", "B/token", BenchSense::kTime, bytes);
  CompareWith(
      "one message per expert", bytes,
      std::vector<double>(bytes.size(), static_cast<double>(NaiveRowBytes(node_->config()))),
      std::nullopt, &wire);
  results_.push_back(std::move(wire));
}

absl::Status ClusterBench::Run() {
  MOEBIUS_RETURN_IF_ERROR(Open());
  total_ = 2 * static_cast<int>(options_.transports.size()) * (options_.repetitions + 1);
  for (const std::string& transport : options_.transports) {
    const absl::Status status = RunTransport(transport);
    if (!status.ok()) return WithContext(status, transport);
  }
  return absl::OkStatus();
}

}  // namespace

int64_t NaiveRowBytes(const ModelConfig& config) {
  int64_t rows = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    rows += config.IsMoeLayer(layer) ? config.gate.top_k + config.num_shared_experts
                                     : config.NumDenseSlices();
  }
  return 2 * rows * config.hidden_size * static_cast<int64_t>(sizeof(Bf16));
}

absl::Status ValidateOptions(const ClusterBenchOptions& options) {
  const auto between = [](absl::string_view flag, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is ", value, ", not in [", low, ", ", high, "]"));
  };
  if (options.model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (options.transports.empty()) return absl::InvalidArgumentError("no transport is named");
  for (const std::string& transport : options.transports) {
    if (transport == "grpc" || transport == "shm") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--transports takes grpc and shm, not '", transport, "'"));
  }
  MOEBIUS_RETURN_IF_ERROR(between("--experts", options.num_experts, 1, 64));
  MOEBIUS_RETURN_IF_ERROR(between("--attention", options.num_attention, 1, 64));
  MOEBIUS_RETURN_IF_ERROR(between("--rows", options.prefill_rows, 1, 512));
  MOEBIUS_RETURN_IF_ERROR(between("--tokens", options.decode_tokens, 2, 100000));
  return between("--repetitions", options.repetitions, 1, 1000);
}

absl::StatusOr<BenchReport> RunClusterBench(
    const ClusterBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  ClusterBench bench(options, progress);
  MOEBIUS_RETURN_IF_ERROR(bench.Run());
  return MakeBenchReport(kSeed, options.num_threads, bench.results());
}

}  // namespace moebius
