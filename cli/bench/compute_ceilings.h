// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "moebius/base/executor.h"
#include "moebius/tensor/buffer.h"

// What no kernel of few rows can beat: reading each weight once from memory.

namespace moebius {

/// Runs `body` until `duration` has passed, at least once, and returns the mean seconds of a run.
double MeanSeconds(absl::Duration duration, absl::FunctionRef<void()> body);

/// Reads memory that no cache holds, with all threads of an executor.
class MemoryRead {
 public:
  /// Borrows the executor.
  explicit MemoryRead(Executor& executor);
  /// Bytes per second. Not on an executor thread.
  double Measure(absl::Duration duration);

 private:
  Executor& executor_;
  Buffer memory_;
  Array<uint64_t> sums_;  // keeps the reads alive
};

/// What a call must at least take: its weights from memory, or its products at the matrix rate.
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;  // 0: unknown, weights alone count

  double Seconds(double bytes, double flops) const;
};

}  // namespace moebius
