// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/telemetry/instruments.h"
#include "moebius/telemetry/metric_table.h"

namespace moebius {

/// In the order of the metric's labels in the table.
using LabelValues = absl::Span<const absl::string_view>;

/// What collectors write one scrape into. Nothing that is written can fail the scrape: a value that
/// cannot be true is clamped, a series too many or twice is left out, and each is counted in
/// moebius_metrics_errors_total.
class MetricWriter {
 public:
  void WriteCounter(Metric metric, double value, LabelValues labels = {});
  void WriteCounter(Metric metric, const Counter& counter, LabelValues labels = {}) {
    WriteCounter(metric, static_cast<double>(counter.value()), labels);
  }
  void WriteGauge(Metric metric, double value, LabelValues labels = {});
  void WriteHistogram(const Histogram& histogram, LabelValues labels = {});

 private:
  friend class Registry;
  struct Scrape;
  explicit MetricWriter(Scrape& scrape) : scrape_(scrape) {}

  Scrape& scrape_;
};

/// Gathers the metrics of one process, or of one of several services inside it: there is no global
/// registry. Parts keep their own counts; their collectors are called at each scrape and read them.
///
/// Thread-safe. Outlives its handles.
class Registry {
 public:
  /// Called on the scraping thread, one scrape at a time. It must not block, and adds or removes no
  /// collector.
  using Collector = std::function<void(MetricWriter&)>;

  /// Keeps a collector registered. Destruction waits for a scrape that runs, so that what the
  /// collector reads may go afterwards.
  class [[nodiscard]] Handle {
   public:
    Handle() = default;
    ~Handle();
    Handle(Handle&& other) noexcept;
    Handle& operator=(Handle&& other) noexcept;

   private:
    friend class Registry;
    Handle(Registry* registry, uint64_t id) : registry_(registry), id_(id) {}
    Registry* registry_ = nullptr;
    uint64_t id_ = 0;
  };

  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Handle AddCollector(Collector collector);

  /// All metrics in the text format 0.0.4 of Prometheus.
  std::string Scrape();

 private:
  void Remove(uint64_t id);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
