// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/attention_bench.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/compute_ceilings.h"
#include "cli/bench/peer_program.h"

#include "attention_service/kernel_rate.h"
#include "attention_service/rank_group_probe.h"
#include "moebius/base/executor.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"

namespace moebius {
namespace {

constexpr uint64_t kSeed = 1;
constexpr char kReadBandwidth[] = "read bandwidth";
constexpr double kDecodeTarget = 0.8;
constexpr int64_t kSpan = 1024;
// Ranks of one process on the same threads as one rank: what is left of its speed, and how the two
// sums compare where keys travel.
constexpr int32_t kNumRanks = 4;
constexpr double kRanksTarget = 0.9;
constexpr double kCanonicalTarget = 0.97;
// The peer's large GEMM.
constexpr int64_t kGemmRows = 1024;
constexpr int64_t kGemmWidth = 2048;

class AttentionBench {
 public:
  AttentionBench(const AttentionBenchOptions& options,
                 const std::function<void(int done, int total, const std::string& next)>& progress)
      : options_(options),
        progress_(progress),
        executor_(options.num_threads > 0 ? options.num_threads : DefaultNumThreads()),
        memory_(executor_) {}

  absl::Status Run();
  const std::vector<BenchResult>& results() const { return results_; }

 private:
  absl::Status RunTier(Tier tier);
  absl::Status MeasurePrefill(AttentionProbe& probe, bool counts);
  absl::Status MeasureDecode(AttentionProbe& probe, bool reversed, bool counts);
  absl::StatusOr<double> GemmFlops();
  absl::Status MakeGroups(Tier tier);
  absl::Status MeasureGroups(bool reversed, bool counts);
  void Report(Tier tier);
  void Announce(const std::string& what) {
    if (progress_ != nullptr) progress_(done_, total_, what);
    ++done_;
  }
  AttentionHeads Heads() const {
    return {.query_heads = options_.query_heads,
            .kv_heads = options_.kv_heads,
            .head_dim = options_.head_dim,
            .value_dim = options_.head_dim};
  }

  const AttentionBenchOptions& options_;
  const std::function<void(int done, int total, const std::string& next)>& progress_;
  Executor executor_;
  MemoryRead memory_;
  std::vector<BenchResult> results_;
  int done_ = 0;
  int total_ = 0;

  // Of the tier that is measured.
  std::unique_ptr<PeerProgram> peer_;
  BenchSeries prefill_, decode_;
  // One rank; ranks with the canonical sum; with the per-degree sum.
  std::array<std::unique_ptr<RankGroupProbe>, 3> groups_;
  BenchSeries ranks_, canonical_;
};

// 0 where no peer knows a GEMM.
absl::StatusOr<double> AttentionBench::GemmFlops() {
  if (peer_ == nullptr) return 0.0;
  MOEBIUS_ASSIGN_OR_RETURN(
      const std::optional<double> seconds,
      peer_->Ask(absl::StrCat("gemm bf16 ", kGemmRows, " ", kGemmWidth, " ", kGemmWidth, " ",
                              absl::ToDoubleSeconds(options_.duration))));
  return seconds.has_value() ? 2.0 * kGemmRows * kGemmWidth * kGemmWidth / *seconds : 0.0;
}

absl::Status AttentionBench::MeasurePrefill(AttentionProbe& probe, bool counts) {
  const double flops = AttentionFlops(Heads(), {.new_tokens = options_.prefill_tokens});
  MOEBIUS_ASSIGN_OR_RETURN(const double before, GemmFlops());
  MOEBIUS_ASSIGN_OR_RETURN(const double seconds, probe.TimePrefill(options_.prefill_tokens));
  MOEBIUS_ASSIGN_OR_RETURN(const double after, GemmFlops());
  if (!counts) return absl::OkStatus();
  prefill_.values.push_back(flops / seconds);
  if (before > 0) prefill_.baselines.push_back((before + after) / 2);
  return absl::OkStatus();
}

absl::Status AttentionBench::MeasureDecode(AttentionProbe& probe, bool reversed, bool counts) {
  double read = reversed ? 0 : memory_.Measure(options_.duration / 2);
  MOEBIUS_ASSIGN_OR_RETURN(const double seconds,
                           probe.TimeDecode(options_.decode_tokens, options_.duration));
  if (reversed) read = memory_.Measure(options_.duration / 2);
  if (!counts) return absl::OkStatus();
  const double bytes = static_cast<double>(options_.decode_tokens) * options_.kv_heads * 2 *
                       options_.head_dim * static_cast<double>(sizeof(Bf16));
  decode_.values.push_back(bytes / seconds);
  decode_.baselines.push_back(read);
  return absl::OkStatus();
}

absl::Status AttentionBench::MakeGroups(Tier tier) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    AttentionFacts facts = FactsOfHeads(Heads(), kSpan);
    facts.sum = i == 2 ? AttentionSum::kPerDegree : AttentionSum::kCanonical;
    MOEBIUS_ASSIGN_OR_RETURN(groups_[i],
                             RankGroupProbe::Make(facts, *FindKernels(tier), executor_,
                                                  i == 0 ? 1 : kNumRanks, options_.prefill_tokens));
  }
  return absl::OkStatus();
}

// A prompt that is one step, so that all ranks have a part of it.
absl::Status AttentionBench::MeasureGroups(bool reversed, bool counts) {
  const double flops = AttentionFlops(Heads(), {.new_tokens = options_.prefill_tokens});
  std::array<double, 3> rates{};
  for (size_t i = 0; i < groups_.size(); ++i) {
    const size_t group = reversed ? groups_.size() - 1 - i : i;
    MOEBIUS_ASSIGN_OR_RETURN(
        const double seconds,
        groups_[group]->TimePrefill(options_.prefill_tokens, options_.prefill_tokens));
    rates[group] = flops / seconds;
  }
  if (!counts) return absl::OkStatus();
  ranks_.values.push_back(rates[1]);
  ranks_.baselines.push_back(rates[0]);
  canonical_.values.push_back(rates[1]);
  canonical_.baselines.push_back(rates[2]);
  return absl::OkStatus();
}

absl::Status AttentionBench::RunTier(Tier tier) {
  peer_.reset();
  prefill_ = decode_ = ranks_ = canonical_ = {};
  if (!options_.peers.empty()) {
    MOEBIUS_ASSIGN_OR_RETURN(peer_,
                             PeerProgram::Start(options_.peers[0], std::string(TierName(tier)),
                                                executor_.num_threads()));
  }
  MOEBIUS_ASSIGN_OR_RETURN(
      const std::unique_ptr<AttentionProbe> probe,
      AttentionProbe::Make(FactsOfHeads(Heads(), kSpan), *FindKernels(tier), executor_,
                           options_.prefill_tokens + options_.decode_tokens + 1));
  MOEBIUS_RETURN_IF_ERROR(MakeGroups(tier));
  // The first one is not counted: pages, caches and clocks settle.
  for (int repetition = -1; repetition < options_.repetitions; ++repetition) {
    const bool reversed = repetition % 2 == 1;
    for (const bool is_prefill : {!reversed, reversed}) {
      Announce(absl::StrCat("attention.", is_prefill ? "prefill." : "decode.", TierName(tier)));
      MOEBIUS_RETURN_IF_ERROR(is_prefill ? MeasurePrefill(*probe, repetition >= 0)
                                         : MeasureDecode(*probe, reversed, repetition >= 0));
    }
    Announce(absl::StrCat("attention.ranks.", TierName(tier)));
    MOEBIUS_RETURN_IF_ERROR(MeasureGroups(reversed, repetition >= 0));
  }
  Report(tier);
  return absl::OkStatus();
}

void AttentionBench::Report(Tier tier) {
  BenchResult prefill = Summarize(absl::StrCat("attention.prefill.", TierName(tier)), "FLOP/s",
                                  BenchSense::kRate, prefill_.values);
  if (prefill_.baselines.size() == prefill_.values.size()) {
    CompareWith(peer_->name(), prefill_.values, prefill_.baselines,
                AttentionPrefillTarget(tier, tier == BestKernels().tier), &prefill);
  }
  results_.push_back(std::move(prefill));
  BenchResult decode = Summarize(absl::StrCat("attention.decode.", TierName(tier)), "B/s",
                                 BenchSense::kRate, decode_.values);
  CompareWith(kReadBandwidth, decode_.values, decode_.baselines,
              tier == BestKernels().tier ? std::optional<double>(kDecodeTarget) : std::nullopt,
              &decode);
  results_.push_back(std::move(decode));
  const bool is_best = tier == BestKernels().tier;
  const auto report = [&](absl::string_view name, absl::string_view against, double target,
                          const BenchSeries& series) {
    BenchResult result =
        Summarize(absl::StrCat(name, TierName(tier)), "FLOP/s", BenchSense::kRate, series.values);
    CompareWith(std::string(against), series.values, series.baselines,
                is_best ? std::optional<double>(target) : std::nullopt, &result);
    results_.push_back(std::move(result));
  };
  report(absl::StrCat("attention.ranks.N=", kNumRanks, "."), "one rank", kRanksTarget, ranks_);
  report("attention.canonical.", "per-degree sum", kCanonicalTarget, canonical_);
}

absl::Status AttentionBench::Run() {
  std::vector<Tier> tiers = options_.tiers;
  if (tiers.empty()) tiers.push_back(BestKernels().tier);
  total_ = static_cast<int>(tiers.size()) * 3 * (options_.repetitions + 1);
  for (const Tier tier : tiers) MOEBIUS_RETURN_IF_ERROR(RunTier(tier));
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", not in [", low, ", ", high, "]"));
}

}  // namespace

std::optional<double> AttentionPrefillTarget(Tier tier, bool is_best) {
  if (tier == Tier::kPortable || !is_best) return std::nullopt;
  return tier == Tier::kAmx ? 0.45 : 0.5;
}

absl::Status ValidateOptions(const AttentionBenchOptions& options) {
  constexpr int64_t kMaxTokens = int64_t{1} << 20;
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--tokens", options.prefill_tokens, 1, kMaxTokens));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--keys", options.decode_tokens, 1, kMaxTokens));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--repetitions", options.repetitions, 1, 1000));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--kv-heads", options.kv_heads, 1, 1024));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--query-heads", options.query_heads, options.kv_heads, 1024));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("--head-dim", options.head_dim, 2, 1024));
  if (options.query_heads % options.kv_heads != 0 || options.head_dim % 2 != 0) {
    return absl::InvalidArgumentError("--kv-heads divides --query-heads, --head-dim is even");
  }
  if (options.duration < absl::Milliseconds(1) || options.duration > absl::Seconds(30)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seconds is ", absl::ToDoubleSeconds(options.duration), ", not in [0.001, 30]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> RunAttentionBench(
    const AttentionBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  AttentionBench bench(options, progress);
  MOEBIUS_RETURN_IF_ERROR(bench.Run());
  return MakeBenchReport(kSeed, options.num_threads, bench.results());
}

}  // namespace moebius
