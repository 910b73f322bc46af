// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

#include "moebius/telemetry/metric_table.h"

// What a part counts with while it works. An instrument belongs to the part, knows no labels, and
// costs one relaxed addition; a collector writes it out when somebody scrapes (registry.h).

namespace moebius {

/// A count that only grows. Thread-safe.
class Counter {
 public:
  void Add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

inline constexpr size_t kMaxBuckets = 16;

/// What a histogram holds at one moment.
struct HistogramFigures {
  std::array<uint64_t, kMaxBuckets + 1> counts =
      {};  // [bucket], not summed up; the last: above all
  double sum = 0;
  uint64_t clamped = 0;  // values below 0 or NaN, counted as 0

  uint64_t count() const;
};

/// Counts values in the buckets that the table gives `metric`. Thread-safe.
class Histogram {
 public:
  /// `metric` is a histogram in the table.
  explicit Histogram(Metric metric);

  /// A value that cannot be true (a clock stepped back) counts as 0 and is told on.
  void Observe(double value);
  void Observe(absl::Duration value) { Observe(absl::ToDoubleSeconds(value)); }

  /// Each count is whole; together they may be one value apart.
  HistogramFigures figures() const;
  Metric metric() const { return metric_; }

 private:
  const Metric metric_;
  const absl::Span<const double> bounds_;
  std::array<std::atomic<uint64_t>, kMaxBuckets + 1> counts_ = {};
  std::atomic<double> sum_{0};
  std::atomic<uint64_t> clamped_{0};
};

}  // namespace moebius
