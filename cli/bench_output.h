// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/bench/report.h"

// How every benchmark shows its report.

namespace moebius {

/// A table on stdout. `header` says how it was measured.
void PrintReport(const BenchReport& report, absl::string_view header);

/// 1.23 GB/s, 18.2 µs, 0.81 s/GB: a value in the unit that people use. Pure.
std::string FormatBenchValue(double value, absl::string_view unit);

/// The report as JSON into a file.
absl::Status WriteReport(const std::string& path, const BenchReport& report);

/// What changed between two reports, on stdout.
absl::Status PrintComparison(const std::string& before, const std::string& after);

}  // namespace moebius
