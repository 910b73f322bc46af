// SPDX-License-Identifier: Apache-2.0
// Prints docs/metrics.md from the table of metrics; with --check FILE compares, and exits 1 when
// the file says something else.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "moebius/telemetry/metric_table.h"

namespace moebius {
namespace {

constexpr absl::string_view kIntroduction = R"(<!-- SPDX-License-Identifier: Apache-2.0 -->
# Metrics

Every service shows these at `/metrics` of its HTTP port (`--http-listen`), in Prometheus' text format, beside `/livez`,
`/readyz` and `/startupz`. The list is made from `moebius/telemetry/metric_table.cc` by `metrics_document`; a test fails
when they differ.

- A service shows the metrics of what it does, each series from 0 on. Pod and node come from the scrape.
- Units are seconds, bytes and ratios from 0 to 1. Counters end in `_total`. Times are Unix times, never ages.
- No label has a request id, an address or a trace id. A metric has at most 256 series in one process, unless noted.
- Load is counted once, by the owner of the rows, when a step is done. What a step does again after a fault is in
  `moebius_recomputed_total` alone; rows of steps that are run again because an attention rank took their keys with it are
  load again, and there as `kv_rows`.
- Gauges are read from the tables when somebody scrapes; nothing has to be counted down.
- A value that cannot be true is shown as 0, a series too many or twice is left out, and
  `moebius_metrics_errors_total` counts both.
)";

constexpr absl::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::string Row(const MetricSpec& spec) {
  std::string labels;
  for (size_t index = 0; index < spec.num_labels(); ++index) {
    absl::StrAppend(&labels, index == 0 ? "" : ", ", "`", spec.labels[index], "`");
  }
  std::string help(spec.help);
  if (!spec.buckets.empty()) {
    absl::StrAppend(&help, " Buckets: ", absl::StrJoin(spec.buckets, " "), ".");
  }
  if (spec.max_series != kDefaultMaxSeries) {
    absl::StrAppend(&help, " At most ", spec.max_series, " series.");
  }
  return absl::StrFormat("| `%s` | %s | %s | %s | %s |\n", spec.name, TypeName(spec.type),
                         spec.unit.empty() ? "–" : spec.unit, labels.empty() ? "–" : labels, help);
}

// What one would look for, and why it is not there.
constexpr absl::string_view kAbsent = R"(
## What is not there

A figure that nobody can tell honestly is left out; so is what concerns nothing that exists.

| one would look for | why it is not there |
| --- | --- |
| round-trip time of each peer | a peer is no label: there is no bound for their number. `moebius_peer_rtt_seconds` has all of a process, and of steps that were slow the log names the expert service |
| last change of the placement, rebalances, moved bytes, stale terms | the placement of a router is fixed when it starts, and with it `moebius_placement_epoch` and the router's term; its start is in `process_start_time_seconds` |
| assignments dropped for lack of a replica or for a deadline | none are: such a step fails or is tried again, and its requests with it |
| energy, memory and time of GPUs | services compute on the CPU; a host's GPUs are told by its own exporter |
)";

std::string Document() {
  std::string text(kIntroduction);
  absl::string_view area;
  for (const MetricSpec& spec : MetricTable()) {
    if (MetricArea(spec.metric) != area) {
      area = MetricArea(spec.metric);
      absl::StrAppend(
          &text, "\n## ", area,
          "\n\n| metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n");
    }
    text += Row(spec);
  }
  return absl::StrCat(text, kAbsent);
}

int Check(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (text.str() == Document()) return 0;
  std::istringstream found(text.str());
  std::istringstream wanted(Document());
  std::string found_line;
  std::string wanted_line;
  int line = 0;
  do {
    ++line;
    found_line.clear();
    wanted_line.clear();
    std::getline(found, found_line);
    std::getline(wanted, wanted_line);
  } while (found_line == wanted_line && (found || wanted));
  std::cerr << path << ":" << line
            << ": the table of metrics says otherwise\n  found:  " << found_line
            << "\n  wanted: " << wanted_line << "\nmake it again: metrics_document > " << path
            << "\n";
  return 1;
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  if (argc == 1) {
    std::cout << moebius::Document();
    return 0;
  }
  if (argc == 3 && std::string(argv[1]) == "--check") return moebius::Check(argv[2]);
  std::cerr << "usage: metrics_document [--check FILE]\n";
  return 2;
}
