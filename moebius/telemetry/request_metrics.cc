// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/request_metrics.h"

#include <utility>

#include "moebius/base/check.h"

namespace moebius {

RequestMetrics::RequestMetrics(std::string service, std::vector<std::string> methods)
    : service_(std::move(service)) {
  for (std::string& name : methods) {
    methods_.push_back(std::make_unique<Method>());
    methods_.back()->name = std::move(name);
  }
}

void RequestMetrics::OnStarted(size_t method) {
  MOEBIUS_CHECK_LT(method, methods_.size());
  methods_[method]->started.Add();
}

void RequestMetrics::OnEnded(size_t method, absl::StatusCode code, absl::Duration taken) {
  MOEBIUS_CHECK_LT(method, methods_.size());
  size_t index = static_cast<size_t>(code);
  if (index >= kNumCodes) index = static_cast<size_t>(absl::StatusCode::kUnknown);
  methods_[method]->ended[index].Add();
  methods_[method]->seconds.Observe(taken);
}

void RequestMetrics::WriteMetrics(MetricWriter& writer) const {
  for (const auto& method : methods_) {
    // Ended before started: a call that comes in between is in flight, never less than none.
    uint64_t ended = 0;
    for (size_t index = 0; index < kNumCodes; ++index) {
      const uint64_t count = method->ended[index].value();
      ended += count;
      writer.WriteCounter(
          Metric::kRequests, static_cast<double>(count),
          {service_, method->name, absl::StatusCodeToString(static_cast<absl::StatusCode>(index))});
    }
    writer.WriteGauge(Metric::kRequestsInFlight,
                      static_cast<double>(method->started.value() - ended),
                      {service_, method->name});
    writer.WriteHistogram(method->seconds, {service_, method->name});
  }
}

}  // namespace moebius
