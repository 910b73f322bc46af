// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"

#include "moebius/telemetry/log.h"
#include "moebius/telemetry/registry.h"
#include "moebius/telemetry/trace/trace_exporter.h"
#include "router_service/config.h"
#include "router_service/request_trace.h"
#include "router_service/trace_budget.h"

namespace moebius {

/// What --trace-endpoint, --trace-sample-ratio and --trace-caller-rate say.
struct TracingOptions {
  std::optional<HttpTarget> target;  // nothing: off
  double sample_ratio = 0;           // [0, 1]
  double caller_rate = 0;            // calls a second, of callers that want theirs traced
};

/// INVALID_ARGUMENT names the setting.
absl::StatusOr<TracingOptions> TracingOptionsOf(const RouterFlags& flags);

/// A router's spans: which are recorded, and the exporter that sends them. Thread-safe; outlives
/// whoever has its rule. Destruction takes at most a second or so for what is queued.
class RouterTracing {
 public:
  /// `logger` is told of drops; null: nobody.
  RouterTracing(const TracingOptions& options, const TraceResource& resource, Logger* logger);

  TraceRule rule() { return {exporter_.get(), sample_ratio_, &callers_}; }
  void WriteMetrics(MetricWriter& writer) const;

 private:
  const double sample_ratio_;
  TraceBudget callers_;
  std::unique_ptr<TraceExporter> exporter_;  // null: off
};

}  // namespace moebius
