// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/report.h"

namespace moebius {

struct TransportBenchOptions {
  std::vector<std::string> transports;  // of TransportBenchKinds()
  std::vector<int64_t> message_bytes = {64, 4 << 10, 64 << 10, 1 << 20};
  absl::Duration duration = absl::Milliseconds(400);  // of one measurement
  int repetitions = 5;
};

/// The transports that this build can measure.
std::vector<std::string> TransportBenchKinds();

/// INVALID_ARGUMENT with a hint for what cannot be measured.
absl::Status ValidateOptions(const TransportBenchOptions& options);

/// Told before each measurement: how many are done, of how many, and which is next.
using BenchProgress = std::function<void(int done, int total, const std::string& next)>;

/// Bandwidth, CPU and round trips of each transport between this process and another one (loopback:
/// inside this one). Beside each repetition, in the same minute of the same machine, its ceiling:
/// a plain gRPC stream, one core copying memory that no cache holds, or two processes that wake
/// each other by a futex. Every second repetition runs in the opposite order.
absl::StatusOr<BenchReport> RunTransportBench(const TransportBenchOptions& options,
                                              const BenchProgress& progress);

/// The other process's side: `kind` is what RunTransportBench asks for. Returns when it has gone.
absl::Status ServeTransportBench(const std::string& kind);

}  // namespace moebius
