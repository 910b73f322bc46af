// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/transport/frame/shared_bytes.h"

namespace moebius {

/// What a measurement of messages one way saw.
struct Throughput {
  double bytes = 0;        // of payload, without headers
  double seconds = 0;      // until the other end had consumed the last message
  double cpu_seconds = 0;  // of both processes

  double bytes_per_second() const { return seconds > 0 ? bytes / seconds : 0; }
  double cpu_seconds_per_gigabyte() const { return bytes > 0 ? cpu_seconds / (bytes / 1e9) : 0; }
};

/// One way to move messages to another process, connected. Not thread-safe.
class BenchChannel {
 public:
  virtual ~BenchChannel() = default;
  /// Sends messages of `message_bytes` (a multiple of 16, > 0) for about `duration`.
  virtual absl::StatusOr<Throughput> MeasureBandwidth(int64_t message_bytes,
                                                      absl::Duration duration) = 0;
  /// The mean time of a message of kPingBytes there and one back, one after the other.
  virtual absl::StatusOr<absl::Duration> MeasureRoundTrip(absl::Duration duration) = 0;
};

/// The far end of a channel: answers until it is destroyed.
class BenchServer {
 public:
  virtual ~BenchServer() = default;
  /// What a channel dials.
  virtual std::string address() const = 0;
};

inline constexpr int64_t kPingBytes = 64;
/// The largest message that is measured.
inline constexpr int64_t kMaxBenchMessageBytes = int64_t{64} << 20;
/// No measurement waits longer for its other end.
inline constexpr absl::Duration kBenchPatience = absl::Seconds(60);

/// Of the random payloads.
inline constexpr uint64_t kPayloadSeed = 1;

/// CPU seconds of this process so far.
double ProcessCpuSeconds();

/// Payloads to send: slices of one random memory that is larger than a core's own caches, so that
/// no implementation sends what the last message left in them.
class PayloadPool {
 public:
  explicit PayloadPool(int64_t message_bytes);
  SharedBytes Next();

 private:
  const size_t message_bytes_;
  SharedBytes memory_;
  size_t next_ = 0;
};

}  // namespace moebius
