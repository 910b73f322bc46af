// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/telemetry/instruments.h"
#include "moebius/telemetry/registry.h"

namespace moebius {

/// The calls of one RPC service: moebius_requests_total, moebius_request_duration_seconds and
/// moebius_requests_in_flight. Methods are known from the start, so that a call costs three
/// additions and no name from outside ever becomes a label. Thread-safe.
class RequestMetrics {
 public:
  /// `service` and `methods` are label values: "router", {"Generate", "Forward"}.
  RequestMetrics(std::string service, std::vector<std::string> methods);

  /// A call of methods[method] has arrived.
  void OnStarted(size_t method);
  /// It has ended, however. Once for each OnStarted.
  void OnEnded(size_t method, absl::StatusCode code, absl::Duration taken);

  void WriteMetrics(MetricWriter& writer) const;

 private:
  static constexpr size_t kNumCodes = 17;
  struct Method {
    std::string name;
    Counter started;
    std::array<Counter, kNumCodes> ended;  // by code
    Histogram seconds{Metric::kRequestSeconds};
  };

  const std::string service_;
  std::vector<std::unique_ptr<Method>> methods_;
};

}  // namespace moebius
