// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/host_facts.h"

#include "moebius/base/check.h"
#include "moebius/base/executor.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/tier.h"

namespace moebius {
namespace {

absl::StatusOr<double> NumberOf(const Json& json) {
  switch (json.kind()) {
    case Json::Kind::kNumber:
      return json.number();
    case Json::Kind::kInteger:
      return static_cast<double>(json.integer());
    default:
      return absl::InvalidArgumentError(absl::StrCat(json.KindName(), " is no number"));
  }
}

// One result as it is in a file.
struct StoredResult {
  std::string name;
  std::string unit;
  double value = 0;
  std::optional<double> ratio;
};

absl::StatusOr<StoredResult> ParseResult(const Json& json) {
  const Json* name = json.Find("name");
  const Json* unit = json.Find("unit");
  const Json* value = json.Find("value");
  if (name == nullptr || name->kind() != Json::Kind::kString || unit == nullptr ||
      unit->kind() != Json::Kind::kString || value == nullptr) {
    return absl::InvalidArgumentError("a result without name, unit and value");
  }
  StoredResult result;
  result.name = name->string();
  result.unit = unit->string();
  MOEBIUS_ASSIGN_OR_RETURN(result.value, NumberOf(*value));
  const Json* ratio = json.Find("ratio");
  if (ratio != nullptr && ratio->kind() != Json::Kind::kNull) {
    MOEBIUS_ASSIGN_OR_RETURN(result.ratio, NumberOf(*ratio));
  }
  return result;
}

absl::StatusOr<std::vector<StoredResult>> ParseReport(absl::string_view source, const Json& json) {
  const Json* results = json.Find("results");
  if (results == nullptr || results->kind() != Json::Kind::kArray) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": no report of a benchmark"));
  }
  std::vector<StoredResult> parsed;
  for (const Json& element : results->elements()) {
    absl::StatusOr<StoredResult> result = ParseResult(element);
    if (!result.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": ", result.status().message()));
    }
    parsed.push_back(*std::move(result));
  }
  return parsed;
}

Json ResultToJson(const BenchResult& result) {
  Json json = Json::Object({});
  json.Set("name", Json::String(result.name));
  json.Set("unit", Json::String(result.unit));
  json.Set("value", Json::Number(result.value));
  json.Set("spread", Json::Number(result.spread));
  json.Set("baseline", Json());
  json.Set("baseline_value", Json());
  json.Set("ratio", Json());
  json.Set("target", Json());
  if (!result.baseline.has_value()) return json;
  json.Set("baseline", Json::String(result.baseline->name));
  json.Set("baseline_value", Json::Number(result.baseline->value));
  json.Set("ratio", Json::Number(result.baseline->ratio));
  if (result.baseline->target.has_value()) {
    json.Set("target", Json::Number(*result.baseline->target));
  }
  return json;
}

}  // namespace

double Median(std::vector<double> values) {
  MOEBIUS_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

BenchResult Summarize(std::string name, std::string unit, BenchSense sense,
                      const std::vector<double>& values) {
  BenchResult result;
  result.name = std::move(name);
  result.unit = std::move(unit);
  result.sense = sense;
  result.value = Median(values);
  const auto [smallest, largest] = std::minmax_element(values.begin(), values.end());
  result.spread = result.value > 0 ? (*largest - *smallest) / result.value : 0;
  return result;
}

void CompareWith(std::string baseline, const std::vector<double>& values,
                 const std::vector<double>& baseline_values, std::optional<double> target,
                 BenchResult* result) {
  MOEBIUS_CHECK_EQ(values.size(), baseline_values.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_rate = result->sense == BenchSense::kRate;
    const double above = is_rate ? values[i] : baseline_values[i];
    const double below = is_rate ? baseline_values[i] : values[i];
    ratios.push_back(below > 0 ? above / below : 0);
  }
  result->baseline =
      BenchBaseline{std::move(baseline), Median(baseline_values), Median(ratios), target};
}

BenchReport MakeBenchReport(uint64_t seed, int num_threads, std::vector<BenchResult> results) {
  BenchReport report;
  report.host = HostName();
  report.cpu = CpuName();
  report.tier = std::string(TierName(BestKernels().tier));
  report.threads = num_threads > 0 ? num_threads : DefaultNumThreads();
  report.date = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  report.seed = seed;
  report.results = std::move(results);
  return report;
}

Json ReportToJson(const BenchReport& report) {
  std::vector<Json> results;
  for (const BenchResult& result : report.results) results.push_back(ResultToJson(result));
  Json json = Json::Object({});
  json.Set("host", Json::String(report.host));
  json.Set("cpu", Json::String(report.cpu));
  json.Set("tier", Json::String(report.tier));
  json.Set("threads", Json::Integer(report.threads));
  json.Set("date", Json::String(report.date));
  json.Set("seed", Json::Integer(static_cast<int64_t>(report.seed)));
  json.Set("results", Json::Array(std::move(results)));
  return json;
}

absl::StatusOr<std::vector<BenchChange>> CompareReports(absl::string_view before_name,
                                                        const Json& before,
                                                        absl::string_view after_name,
                                                        const Json& after) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<StoredResult> old_results,
                           ParseReport(before_name, before));
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<StoredResult> new_results,
                           ParseReport(after_name, after));
  std::map<std::string, const StoredResult*> by_name;
  for (const StoredResult& result : old_results) by_name[result.name] = &result;
  std::vector<BenchChange> changes;
  for (const StoredResult& result : new_results) {
    const auto found = by_name.find(result.name);
    if (found == by_name.end() || found->second->unit != result.unit) continue;
    changes.push_back({result.name, result.unit, found->second->value, result.value,
                       found->second->ratio, result.ratio});
  }
  return changes;
}

}  // namespace moebius
