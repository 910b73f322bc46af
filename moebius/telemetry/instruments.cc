// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/instruments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moebius/base/check.h"

namespace moebius {

uint64_t HistogramFigures::count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

Histogram::Histogram(Metric metric) : metric_(metric), bounds_(SpecOf(metric).buckets) {
  MOEBIUS_CHECK(!bounds_.empty());
  MOEBIUS_CHECK_LE(bounds_.size(), kMaxBuckets);
}

void Histogram::Observe(double value) {
  if (!(value >= 0)) {
    clamped_.fetch_add(1, std::memory_order_relaxed);
    value = 0;
  }
  // The first bound that is not below the value: buckets include their bound.
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramFigures Histogram::figures() const {
  HistogramFigures figures;
  for (size_t index = 0; index <= bounds_.size(); ++index) {
    figures.counts[index] = counts_[index].load(std::memory_order_relaxed);
  }
  figures.sum = sum_.load(std::memory_order_relaxed);
  figures.clamped = clamped_.load(std::memory_order_relaxed);
  return figures;
}

}  // namespace moebius
