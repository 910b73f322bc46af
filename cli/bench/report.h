// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/model/json.h"

// What every benchmark reports, and in which form: benchmarks differ only in what they measure.

namespace moebius {

/// Whether more is better (bytes per second) or less (seconds).
enum class BenchSense { kRate, kTime };

/// What a result is compared with, measured in the same run.
struct BenchBaseline {
  std::string name;  // "plain gRPC stream"
  double value = 0;  // in the result's unit
  /// Higher is better: value/baseline for rates, baseline/value for times.
  double ratio = 0;
  /// What the ratio should reach, where something was promised.
  std::optional<double> target;
};

/// One figure of a benchmark.
struct BenchResult {
  std::string name;  // stable: scripts and comparisons look for it
  std::string unit;
  BenchSense sense = BenchSense::kRate;
  double value = 0;   // the median of the repetitions
  double spread = 0;  // (largest − smallest) / median of the repetitions
  std::optional<BenchBaseline> baseline;

  /// False where a target was missed.
  bool MeetsTarget() const {
    return !baseline.has_value() || !baseline->target.has_value() ||
           baseline->ratio >= *baseline->target;
  }
};

/// Of at least one value; the mean of the two in the middle where their number is even.
double Median(std::vector<double> values);

/// The figure of repetitions. With a baseline, `baseline_values` has one value per repetition,
/// measured beside it: the ratio is the median of the repetitions' ratios, because the speed of a
/// shared machine moves between them.
BenchResult Summarize(std::string name, std::string unit, BenchSense sense,
                      const std::vector<double>& values);
void CompareWith(std::string baseline, const std::vector<double>& values,
                 const std::vector<double>& baseline_values, std::optional<double> target,
                 BenchResult* result);

/// Values of one figure, one for each repetition, and beside each what it is compared with.
struct BenchSeries {
  std::vector<double> values;
  std::vector<double> baselines;
};

struct BenchReport {
  std::string host;
  std::string cpu;
  std::string tier;
  int threads = 0;
  std::string date;  // RFC 3339, UTC
  uint64_t seed = 0;
  std::vector<BenchResult> results;
};

/// A report of this host and moment. `num_threads` 0: all that the process may use.
BenchReport MakeBenchReport(uint64_t seed, int num_threads = 0,
                            std::vector<BenchResult> results = {});

/// {host, cpu, tier, threads, date, seed, results: [{name, unit, value, spread, baseline,
/// baseline_value, ratio, target}]}; null where there is no baseline or target.
Json ReportToJson(const BenchReport& report);

/// One result of two reports.
struct BenchChange {
  std::string name;
  std::string unit;
  double before = 0;
  double after = 0;
  /// Against their baselines, which take the machine's state out; absent where one has none.
  std::optional<double> ratio_before;
  std::optional<double> ratio_after;
};

/// The results that both reports have, in the order of `after`. INVALID_ARGUMENT, starting with
/// the report's name, for what is no report.
absl::StatusOr<std::vector<BenchChange>> CompareReports(absl::string_view before_name,
                                                        const Json& before,
                                                        absl::string_view after_name,
                                                        const Json& after);

}  // namespace moebius
