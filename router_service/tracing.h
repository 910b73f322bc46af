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

namespace moebius {

/// What --trace-endpoint and --trace-sample-ratio say.
struct TracingOptions {
  std::optional<HttpTarget> target;  // nothing: off
  double sample_ratio = 0;           // [0, 1]
};

/// INVALID_ARGUMENT names the setting.
absl::StatusOr<TracingOptions> TracingOptionsOf(const RouterFlags& flags);

/// A router's spans: which are recorded, and the exporter that sends them. Thread-safe; outlives
/// whoever has its rule. Destruction takes at most a second or so for what is queued.
class RouterTracing {
 public:
  /// `logger` is told of drops; null: nobody.
  RouterTracing(const TracingOptions& options, const TraceResource& resource, Logger* logger);

  TraceRule rule() const { return {exporter_.get(), sample_ratio_}; }
  void WriteMetrics(MetricWriter& writer) const;

 private:
  const double sample_ratio_;
  std::unique_ptr<TraceExporter> exporter_;  // null: off
};

}  // namespace moebius
