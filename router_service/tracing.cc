// SPDX-License-Identifier: Apache-2.0
#include "router_service/tracing.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Where collectors take OTLP/HTTP.
constexpr char kDefaultPath[] = "/v1/traces";

}  // namespace

absl::StatusOr<TracingOptions> TracingOptionsOf(const RouterFlags& flags) {
  TracingOptions options;
  MOEBIUS_ASSIGN_OR_RETURN(options.sample_ratio,
                           ParseNumber("--trace-sample-ratio", flags.trace_sample_ratio));
  if (!(options.sample_ratio >= 0 && options.sample_ratio <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace-sample-ratio is ", flags.trace_sample_ratio, ", not from 0 to 1"));
  }
  MOEBIUS_ASSIGN_OR_RETURN(options.caller_rate,
                           ParseNumber("--trace-caller-rate", flags.trace_caller_rate));
  if (!(options.caller_rate >= 0 && options.caller_rate <= kMaxTraceCallerRate)) {
    return absl::InvalidArgumentError(absl::StrCat("--trace-caller-rate is ",
                                                   flags.trace_caller_rate, ", not from 0 to ",
                                                   kMaxTraceCallerRate, " calls a second"));
  }
  if (flags.trace_endpoint.empty()) return options;
  auto target = ParseHttpTarget(flags.trace_endpoint, kDefaultPath);
  if (!target.ok()) return WithContext(target.status(), "--trace-endpoint");
  options.target = *std::move(target);
  return options;
}

RouterTracing::RouterTracing(const TracingOptions& options, const TraceResource& resource,
                             Logger* logger)
    : sample_ratio_(options.sample_ratio), callers_(options.caller_rate, Clock::Monotonic()) {
  if (!options.target.has_value()) return;
  TraceExporterOptions exporter;
  exporter.target = *options.target;
  exporter.resource = resource;
  exporter.logger = logger;
  exporter_ = std::make_unique<TraceExporter>(exporter);
}

void RouterTracing::WriteMetrics(MetricWriter& writer) const {
  WriteTraceMetrics(exporter_ == nullptr ? TraceFigures() : exporter_->figures(), writer);
  writer.WriteCounter(Metric::kTraceCallsOverRate, static_cast<double>(callers_.num_refused()));
}

}  // namespace moebius
