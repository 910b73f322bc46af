// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_output.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/arguments.h"

#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{16} << 20;

// Padded by cells, not bytes: µ has two.
std::string PadLeft(const std::string& text, size_t width) {
  size_t cells = 0;
  for (const char byte : text) cells += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  return cells >= width ? text : std::string(width - cells, ' ') + text;
}

absl::StatusOr<Json> ReadReport(const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadInput(path, kMaxReportBytes));
  return Json::Parse(text, path);
}

}  // namespace

std::string FormatBenchValue(double value, absl::string_view unit) {
  if (unit == "B/s") return absl::StrFormat("%.3f GB/s", value / 1e9);
  if (unit == "FLOP/s") return absl::StrFormat("%.1f GFLOP/s", value / 1e9);
  if (unit == "s" && value < 1e-6) return absl::StrFormat("%.1f ns", value * 1e9);
  if (unit == "s") return absl::StrFormat("%.2f µs", value * 1e6);
  return absl::StrFormat("%.3f %s", value, unit);
}

void PrintReport(const BenchReport& report, absl::string_view header) {
  absl::PrintF("%s, %d %s; %s, medians; spread: (max - min) / median\n", report.cpu, report.threads,
               report.threads == 1 ? "thread" : "threads", header);
  absl::PrintF("%-44s %14s %7s  %6s %7s  %s\n", "", "value", "spread", "ratio", "target",
               "against");
  for (const BenchResult& result : report.results) {
    absl::PrintF("%-44s %s %5.0f %%", result.name,
                 PadLeft(FormatBenchValue(result.value, result.unit), 14), 100 * result.spread);
    if (result.baseline.has_value()) {
      const BenchBaseline& baseline = *result.baseline;
      absl::PrintF("  %6.2f %7s  %s, %s", baseline.ratio,
                   baseline.target.has_value() ? absl::StrFormat("%.2f", *baseline.target) : "",
                   baseline.name, FormatBenchValue(baseline.value, result.unit));
      if (!result.MeetsTarget()) absl::PrintF("  BELOW TARGET");
    }
    absl::PrintF("\n");
  }
}

absl::Status WriteReport(const std::string& path, const BenchReport& report) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << ReportToJson(report).ToPrettyText() << "\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::Status PrintComparison(const std::string& before_path, const std::string& after_path) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json before, ReadReport(before_path));
  MOEBIUS_ASSIGN_OR_RETURN(const Json after, ReadReport(after_path));
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<BenchChange> changes,
                           CompareReports(before_path, before, after_path, after));
  absl::PrintF("%-44s %14s %14s %9s %16s\n", "", "before", "after", "change", "ratio");
  for (const BenchChange& change : changes) {
    std::string ratios;
    if (change.ratio_before.has_value() && change.ratio_after.has_value()) {
      ratios = absl::StrFormat("%.2f > %.2f", *change.ratio_before, *change.ratio_after);
    }
    const double percent = change.before > 0 ? 100 * (change.after / change.before - 1) : 0;
    absl::PrintF("%-44s %s %s %+7.1f %% %16s\n", change.name,
                 PadLeft(FormatBenchValue(change.before, change.unit), 14),
                 PadLeft(FormatBenchValue(change.after, change.unit), 14), percent, ratios);
  }
  return absl::OkStatus();
}

}  // namespace moebius
