// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/request_metrics.h"

#include <string>

#include "gtest/gtest.h"

#include "tests/support/metric_values.h"

namespace moebius {
namespace {

TEST(RequestMetricsTest, CountCallsByMethodAndCode) {
  RequestMetrics requests("router", {"Generate", "Forward"});
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { requests.WriteMetrics(writer); });
  for (int index = 0; index < 6; ++index) requests.OnStarted(0);
  requests.OnEnded(0, absl::StatusCode::kOk, absl::Milliseconds(500));
  requests.OnEnded(0, absl::StatusCode::kOk, absl::Milliseconds(1500));
  requests.OnEnded(0, absl::StatusCode::kCancelled, absl::ZeroDuration());
  requests.OnEnded(0, static_cast<absl::StatusCode>(77), absl::ZeroDuration());
  const std::string scrape = registry.Scrape();
  const auto count = [&](const std::string& method, const std::string& code) {
    return ValueOf(scrape, absl::StrCat("moebius_requests_total{service=\"router\",method=\"",
                                        method, "\",code=\"", code, "\"}"));
  };
  EXPECT_EQ(count("Generate", "OK"), 2);
  EXPECT_EQ(count("Generate", "CANCELLED"), 1);
  EXPECT_EQ(count("Generate", "UNKNOWN"), 1);
  EXPECT_EQ(count("Generate", "UNAVAILABLE"), 0);
  EXPECT_EQ(count("Forward", "OK"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_in_flight{service=\"router\",method=\"Generate\"}"),
            2);
  EXPECT_EQ(ValueOf(scrape,
                    "moebius_request_duration_seconds_sum{service=\"router\",method=\"Generate\"}"),
            2);
  EXPECT_EQ(MetricsErrors(scrape), 0);
}

}  // namespace
}  // namespace moebius
