// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/expert_bench.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/compute_ceilings.h"
#include "cli/bench/peer_program.h"
#include "cli/bench/plain_loop.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/host_memory.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"

namespace moebius {
namespace {

constexpr uint64_t kSeed = 1;
constexpr char kRoofline[] = "roofline";
constexpr char kPlainLoop[] = "plain loop";
// Throughput must not fall where rows are added, but for what repetitions differ by.
constexpr double kStepTarget = 0.9;
constexpr int64_t kMaxStepRows = 32;
// One row with FP8 weights over one with bf16 weights: half the bytes, and the scales.
constexpr double kFp8Target = 1.7;
// Rows of a routed expert from which arithmetic may bound a call: then weights alone are no
// roofline.
constexpr int64_t kMaxReadingRows = 32;
// The tier's GEMM: M, K = N.
constexpr int64_t kGemmRows = 1024;
constexpr int64_t kGemmWidth = 2048;
// Rows from which the GEMM is asked for: fewer are bound by reading on every machine, so that its
// figure would only take time.
constexpr int64_t kMinGemmRows = 32;
// A figure is repeated until it has taken so many durations of a measurement, peers included, and a
// call of more than a second counts from the first: slow tiers and many rows end in time.
constexpr double kFigureDurations = 40;
constexpr double kLongCallSeconds = 1;

class ExpertBench {
 public:
  ExpertBench(const ExpertBenchOptions& options,
              const std::function<void(int done, int total, const std::string& next)>& progress)
      : options_(options),
        progress_(progress),
        executor_(options.num_threads > 0 ? options.num_threads : DefaultNumThreads()),
        memory_(executor_),
        plain_loop_(options.shape) {}

  absl::Status Run();
  const std::vector<BenchResult>& results() const { return results_; }

 private:
  // What is measured of a tier.
  struct Subject {
    const Kernels* kernels = nullptr;
    std::string name;  // expert_ffn.bf16.TIER
    std::vector<std::unique_ptr<PeerProgram>> peers;
    std::vector<FfnCalls> calls;                        // by options_.rows
    std::vector<BenchSeries> series;                    // the same
    std::vector<std::vector<BenchSeries>> peer_series;  // by peer, then by rows
    std::vector<double> seconds_taken;                  // by rows, peers included
    BenchSeries plain_loop;
    std::vector<FfnCalls> bf16_calls;      // by rows, where the figure is FP8's; else empty
    std::vector<BenchSeries> bf16_series;  // the figure over theirs
    bool has_gemm = false;
  };

  // `bf16`: what FP8 weights are compared with, or null.
  absl::Status RunTier(Tier tier, const FfnWeights& weights, const FfnWeights* bf16);
  void MeasureBf16(Subject* subject, size_t index);
  double CallSeconds(const Kernels& kernels, FfnCalls& calls);
  bool HasTakenLong(const Subject& subject, size_t index) const;
  absl::Status StartPeers(Tier tier, Subject* subject);
  absl::Status RunRepetition(Subject* subject, bool reversed, bool counts);
  absl::Status MeasureRows(Subject* subject, size_t index, bool reversed, bool counts);
  absl::Status AskPeers(Subject* subject, size_t index, bool counts);
  absl::StatusOr<double> GemmFlops(Subject* subject);
  void Report(const Subject& subject);
  void Announce(const std::string& what);
  std::string FfnQuestion(int64_t num_rows) const;

  const ExpertBenchOptions& options_;
  const std::function<void(int done, int total, const std::string& next)>& progress_;
  Executor executor_;
  MemoryRead memory_;
  PlainLoop plain_loop_;
  std::vector<BenchResult> results_;
  int done_ = 0;
  int total_ = 0;
};

void ExpertBench::Announce(const std::string& what) {
  if (progress_ != nullptr) progress_(done_, total_, what);
  ++done_;
}

absl::Status ExpertBench::StartPeers(Tier tier, Subject* subject) {
  for (const std::string& command : options_.peers) {
    MOEBIUS_ASSIGN_OR_RETURN(
        std::unique_ptr<PeerProgram> peer,
        PeerProgram::Start(command, std::string(TierName(tier)), executor_.num_threads()));
    subject->peers.push_back(std::move(peer));
  }
  subject->peer_series.resize(subject->peers.size(),
                              std::vector<BenchSeries>(options_.rows.size()));
  return absl::OkStatus();
}

// Of the first peer that knows a GEMM; 0 where none does.
absl::StatusOr<double> ExpertBench::GemmFlops(Subject* subject) {
  const std::string question =
      absl::StrCat("gemm bf16 ", kGemmRows, " ", kGemmWidth, " ", kGemmWidth, " ",
                   absl::ToDoubleSeconds(options_.duration));
  for (const std::unique_ptr<PeerProgram>& peer : subject->peers) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::optional<double> seconds, peer->Ask(question));
    if (seconds.has_value()) return 2.0 * kGemmRows * kGemmWidth * kGemmWidth / *seconds;
  }
  return 0.0;
}

std::string ExpertBench::FfnQuestion(int64_t num_rows) const {
  const FfnShape& shape = options_.shape;
  return absl::StrCat("expert_ffn bf16 ", num_rows, " ", shape.hidden_size, " ",
                      shape.intermediate_size, " ", shape.num_experts, " ", shape.top_k, " ",
                      absl::ToDoubleSeconds(options_.duration));
}

absl::Status ExpertBench::AskPeers(Subject* subject, size_t index, bool counts) {
  if (!subject->bf16_calls.empty()) return absl::OkStatus();  // they know bf16 alone
  const int64_t num_rows = options_.rows[index];
  for (size_t p = 0; p < subject->peers.size(); ++p) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::optional<double> seconds,
                             subject->peers[p]->Ask(FfnQuestion(num_rows)));
    if (!seconds.has_value() || !counts) continue;
    BenchSeries& series = subject->peer_series[p][index];
    series.values.push_back(subject->series[index].values.back());
    series.baselines.push_back(static_cast<double>(num_rows) / *seconds);
  }
  return absl::OkStatus();
}

double ExpertBench::CallSeconds(const Kernels& kernels, FfnCalls& calls) {
  double seconds = 0;
  executor_.Run(
      [&] { seconds = MeanSeconds(options_.duration, [&] { calls.Run(executor_, kernels); }); });
  return seconds;
}

bool ExpertBench::HasTakenLong(const Subject& subject, size_t index) const {
  return !subject.series[index].values.empty() &&
         subject.seconds_taken[index] > kFigureDurations * absl::ToDoubleSeconds(options_.duration);
}

// The figure, between its two ceilings.
absl::Status ExpertBench::MeasureRows(Subject* subject, size_t index, bool reversed, bool counts) {
  const int64_t num_rows = options_.rows[index];
  Announce(absl::StrCat(subject->name, ", ", num_rows, num_rows == 1 ? " row" : " rows"));
  if (HasTakenLong(*subject, index)) return absl::OkStatus();
  const absl::Duration start = Clock::Monotonic().Now();
  Roofline roofline;
  const auto gemm = [&]() -> absl::Status {
    if (num_rows < kMinGemmRows) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(roofline.flops_per_second, GemmFlops(subject));
    subject->has_gemm = roofline.flops_per_second > 0;
    return absl::OkStatus();
  };
  if (reversed) {
    MOEBIUS_RETURN_IF_ERROR(gemm());
  } else {
    roofline.bytes_per_second = memory_.Measure(options_.duration / 2);
  }
  FfnCalls& calls = subject->calls[index];
  const double seconds = CallSeconds(*subject->kernels, calls);
  if (reversed) {
    roofline.bytes_per_second = memory_.Measure(options_.duration / 2);
  } else {
    MOEBIUS_RETURN_IF_ERROR(gemm());
  }
  counts = counts || seconds > kLongCallSeconds;
  const double rows = static_cast<double>(num_rows);
  if (counts) {
    BenchSeries& series = subject->series[index];
    series.values.push_back(rows / seconds);
    series.baselines.push_back(
        rows / roofline.Seconds(calls.touched_bytes(), rows * options_.shape.FlopsPerRow()));
  }
  if (counts && !subject->bf16_calls.empty()) MeasureBf16(subject, index);
  MOEBIUS_RETURN_IF_ERROR(AskPeers(subject, index, counts));
  subject->seconds_taken[index] += absl::ToDoubleSeconds(Clock::Monotonic().Now() - start);
  return absl::OkStatus();
}

void ExpertBench::MeasureBf16(Subject* subject, size_t index) {
  const double seconds = CallSeconds(*subject->kernels, subject->bf16_calls[index]);
  BenchSeries& series = subject->bf16_series[index];
  series.values.push_back(subject->series[index].values.back());
  series.baselines.push_back(static_cast<double>(options_.rows[index]) / seconds);
}

absl::Status ExpertBench::RunRepetition(Subject* subject, bool reversed, bool counts) {
  for (size_t i = 0; i < options_.rows.size(); ++i) {
    const size_t index = reversed ? options_.rows.size() - 1 - i : i;
    MOEBIUS_RETURN_IF_ERROR(MeasureRows(subject, index, reversed, counts));
    if (options_.rows[index] != 1 || !counts) continue;
    if (subject->series[index].values.size() == subject->plain_loop.values.size()) continue;
    subject->plain_loop.values.push_back(subject->series[index].values.back());
    subject->plain_loop.baselines.push_back(1.0 / plain_loop_.Seconds());
  }
  return absl::OkStatus();
}

absl::Status ExpertBench::RunTier(Tier tier, const FfnWeights& weights, const FfnWeights* bf16) {
  Subject subject;
  subject.kernels = FindKernels(tier);
  subject.name =
      absl::StrCat(bf16 == nullptr ? "expert_ffn.bf16." : "expert_ffn.fp8.", TierName(tier));
  subject.bf16_series.resize(options_.rows.size());
  subject.series.resize(options_.rows.size());
  subject.seconds_taken.resize(options_.rows.size());
  for (const int64_t num_rows : options_.rows) {
    subject.calls.emplace_back(weights, num_rows);
    if (bf16 != nullptr) subject.bf16_calls.emplace_back(*bf16, num_rows);
  }
  MOEBIUS_RETURN_IF_ERROR(StartPeers(tier, &subject));
  // Pages, caches and clocks settle before anything counts.
  MOEBIUS_RETURN_IF_ERROR(RunRepetition(&subject, false, false));
  for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
    MOEBIUS_RETURN_IF_ERROR(RunRepetition(&subject, repetition % 2 == 1, true));
  }
  Report(subject);
  return absl::OkStatus();
}

void ExpertBench::Report(const Subject& subject) {
  const Tier tier = subject.kernels->tier;
  const bool is_best = tier == BestKernels().tier;
  std::vector<double> throughputs;  // of 1 … 32 rows
  for (size_t i = 0; i < options_.rows.size(); ++i) {
    const int64_t num_rows = options_.rows[i];
    const BenchSeries& series = subject.series[i];
    BenchResult result = Summarize(absl::StrCat(subject.name, ".T=", num_rows), "row/s",
                                   BenchSense::kRate, series.values);
    if (subject.has_gemm || num_rows <= kMaxReadingRows) {
      CompareWith(kRoofline, series.values, series.baselines,
                  options_.type == WeightType::kFp8 ? std::nullopt
                                                    : ExpertFfnTarget(tier, is_best, num_rows),
                  &result);
    }
    if (num_rows <= kMaxStepRows) throughputs.push_back(result.value);
    results_.push_back(std::move(result));
    if (const BenchSeries& bf16 = subject.bf16_series[i]; !bf16.values.empty()) {
      BenchResult over = Summarize(absl::StrCat(subject.name, ".T=", num_rows, ".over_bf16"),
                                   "row/s", BenchSense::kRate, bf16.values);
      CompareWith("bf16 experts", bf16.values, bf16.baselines,
                  is_best && num_rows == 1 ? std::optional<double>(kFp8Target) : std::nullopt,
                  &over);
      results_.push_back(std::move(over));
    }
    for (size_t p = 0; p < subject.peers.size(); ++p) {
      const BenchSeries& peer = subject.peer_series[p][i];
      if (peer.values.empty()) continue;
      BenchResult over = Summarize(absl::StrCat(subject.name, ".T=", num_rows, ".over_peer", p),
                                   "row/s", BenchSense::kRate, peer.values);
      CompareWith(subject.peers[p]->name(), peer.values, peer.baselines, std::nullopt, &over);
      results_.push_back(std::move(over));
    }
  }
  if (!subject.plain_loop.values.empty()) {
    BenchResult over = Summarize(subject.name + ".T=1.over_plain_loop", "row/s", BenchSense::kRate,
                                 subject.plain_loop.values);
    CompareWith(kPlainLoop, subject.plain_loop.values, subject.plain_loop.baselines, std::nullopt,
                &over);
    results_.push_back(std::move(over));
  }
  if (throughputs.size() > 1) {
    BenchResult steps = Summarize(subject.name + ".smallest_step", "ratio", BenchSense::kRate,
                                  {SmallestStep(throughputs)});
    CompareWith("no cliff", {steps.value}, {1.0},
                is_best ? std::optional<double>(kStepTarget) : std::nullopt, &steps);
    results_.push_back(std::move(steps));
  }
}

absl::Status ExpertBench::Run() {
  std::vector<Tier> tiers = options_.tiers;
  if (tiers.empty()) tiers.push_back(BestKernels().tier);
  // Tiers of one layout share its weights.
  std::stable_sort(tiers.begin(), tiers.end(), [](Tier a, Tier b) {
    return FindKernels(a)->pair_order < FindKernels(b)->pair_order;
  });
  total_ = static_cast<int>(tiers.size() * options_.rows.size()) * (options_.repetitions + 1);
  const bool is_fp8 = options_.type == WeightType::kFp8;
  std::unique_ptr<FfnWeights> weights;
  std::unique_ptr<FfnWeights> bf16;
  std::optional<PairOrder> order;
  for (const Tier tier : tiers) {
    if (order != FindKernels(tier)->pair_order) {
      order = FindKernels(tier)->pair_order;
      weights.reset();
      bf16.reset();
      weights = std::make_unique<FfnWeights>(options_.shape, *order, options_.type);
      if (is_fp8) bf16 = std::make_unique<FfnWeights>(options_.shape, *order, WeightType::kBf16);
    }
    MOEBIUS_RETURN_IF_ERROR(RunTier(tier, *weights, bf16.get()));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", not in [", low, ", ", high, "]"));
}

}  // namespace

std::optional<double> ExpertFfnTarget(Tier tier, bool is_best, int64_t num_rows) {
  if (tier == Tier::kPortable || (!is_best && tier != Tier::kAvx2)) return std::nullopt;
  const std::map<int64_t, double> avx2 = {{1, 0.80}, {512, 0.65}};
  const std::map<int64_t, double> amx = {
      {1, 0.88}, {8, 0.92}, {32, 0.85}, {128, 0.75}, {512, 0.65}};
  const std::map<int64_t, double> avx512 = {
      {1, 0.88}, {8, 0.92}, {32, 0.85}, {128, 0.65}, {512, 0.80}};
  const std::map<int64_t, double>& targets =
      tier == Tier::kAvx2 ? avx2 : (tier == Tier::kAmx ? amx : avx512);
  const auto found = targets.find(num_rows);
  return found == targets.end() ? std::nullopt : std::optional<double>(found->second);
}

double SmallestStep(const std::vector<double>& throughputs) {
  double smallest = throughputs[1] / throughputs[0];
  for (size_t i = 2; i < throughputs.size(); ++i) {
    smallest = std::min(smallest, throughputs[i] / throughputs[i - 1]);
  }
  return smallest;
}

absl::Status ValidateOptions(const ExpertBenchOptions& options) {
  const FfnShape& shape = options.shape;
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--hidden", shape.hidden_size, 1, 65536));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--intermediate", shape.intermediate_size, 1, 65536));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--experts", shape.num_experts, 1, 4096));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--top-k", shape.top_k, 1, shape.num_experts));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--repetitions", options.repetitions, 1, 1000));
  if (options.rows.empty()) return absl::InvalidArgumentError("no number of rows is named");
  for (size_t i = 0; i < options.rows.size(); ++i) {
    MOEBIUS_RETURN_IF_ERROR(CheckRange("--rows", options.rows[i], 1, 65536));
    if (i > 0 && options.rows[i] <= options.rows[i - 1]) {
      return absl::InvalidArgumentError("--rows takes ascending numbers");
    }
  }
  if (options.duration < absl::Milliseconds(1) || options.duration > absl::Seconds(30)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seconds is ", absl::ToDoubleSeconds(options.duration), ", not in [0.001, 30]"));
  }
  const int64_t bf16_bytes = shape.num_experts * shape.ExpertBytes();
  const int64_t needed =
      options.type == WeightType::kFp8 ? bf16_bytes + bf16_bytes / 2 : bf16_bytes;
  const int64_t available = ReadHostMemory().available_bytes;
  if (available > 0 && needed > available / 2) {
    return WithHint(absl::ResourceExhaustedError(absl::StrCat("the experts take ", needed,
                                                              " bytes, this host has ", available)),
                    "give fewer --experts");
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> RunExpertBench(
    const ExpertBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  ExpertBench bench(options, progress);
  MOEBIUS_RETURN_IF_ERROR(bench.Run());
  return MakeBenchReport(kSeed, options.num_threads, bench.results());
}

}  // namespace moebius
