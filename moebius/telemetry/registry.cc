// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/registry.h"

#include <array>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

#include "moebius/base/check.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

constexpr size_t kMaxLabelBytes = 128;

enum class ErrorReason { kImpossibleValue, kWrongLabels, kDuplicate, kTooManySeries };
constexpr size_t kNumErrorReasons = 4;
constexpr absl::string_view kErrorReasonNames[kNumErrorReasons] = {
    "impossible_value", "wrong_labels", "duplicate", "too_many_series"};

prometheus::MetricType TypeOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

// Label values come from our own tables and now and then from a file or a flag.
std::string PrintableLabel(absl::string_view value) {
  std::string text(value.substr(0, kMaxLabelBytes));
  for (char& c : text) {
    if (c < 0x20 || c > 0x7E) c = '?';
  }
  return text;
}

}  // namespace

// One scrape: a family for each metric that was written.
struct MetricWriter::Scrape {
  struct Family {
    prometheus::MetricFamily family;
    absl::flat_hash_set<std::string> keys;  // of the series that are in it
  };

  std::array<Family, kNumMetrics> families;
  std::array<uint64_t, kNumErrorReasons> errors = {};
  uint64_t clamped = 0;  // by histograms, since their beginning

  void Count(ErrorReason reason) { ++errors[static_cast<size_t>(reason)]; }

  // A new series, or null when it must be left out.
  prometheus::ClientMetric* Add(Metric metric, MetricType type, LabelValues labels) {
    const MetricSpec& spec = SpecOf(metric);
    if (spec.type != type || labels.size() != spec.num_labels()) {
      Count(ErrorReason::kWrongLabels);
      return nullptr;
    }
    Family& entry = families[static_cast<size_t>(metric)];
    if (entry.keys.size() >= spec.max_series) {
      Count(ErrorReason::kTooManySeries);
      return nullptr;
    }
    prometheus::ClientMetric series;
    std::string key;
    for (size_t index = 0; index < labels.size(); ++index) {
      series.label.push_back({std::string(spec.labels[index]), PrintableLabel(labels[index])});
      key += series.label.back().value;
      key += '\0';
    }
    if (!entry.keys.insert(std::move(key)).second) {
      Count(ErrorReason::kDuplicate);
      return nullptr;
    }
    entry.family.metric.push_back(std::move(series));
    return &entry.family.metric.back();
  }
};

void MetricWriter::WriteCounter(Metric metric, double value, LabelValues labels) {
  prometheus::ClientMetric* const series = scrape_.Add(metric, MetricType::kCounter, labels);
  if (series == nullptr) return;
  if (!(value >= 0) || std::isinf(value)) {
    scrape_.Count(ErrorReason::kImpossibleValue);
    value = 0;
  }
  series->counter.value = value;
}

void MetricWriter::WriteGauge(Metric metric, double value, LabelValues labels) {
  prometheus::ClientMetric* const series = scrape_.Add(metric, MetricType::kGauge, labels);
  if (series == nullptr) return;
  if (!std::isfinite(value)) {
    scrape_.Count(ErrorReason::kImpossibleValue);
    value = 0;
  }
  series->gauge.value = value;
}

void MetricWriter::WriteHistogram(const Histogram& histogram, LabelValues labels) {
  const Metric metric = histogram.metric();
  prometheus::ClientMetric* const series = scrape_.Add(metric, MetricType::kHistogram, labels);
  if (series == nullptr) return;
  const HistogramFigures figures = histogram.figures();
  scrape_.clamped += figures.clamped;
  uint64_t cumulative = 0;
  const absl::Span<const double> bounds = SpecOf(metric).buckets;
  for (size_t index = 0; index < bounds.size(); ++index) {
    cumulative += figures.counts[index];
    series->histogram.bucket.push_back({cumulative, bounds[index]});
  }
  // The serializer adds the bucket of infinity from the count.
  series->histogram.sample_count = figures.count();
  series->histogram.sample_sum = figures.sum;
}

class Registry::Impl {
 public:
  uint64_t Add(Collector collector) {
    MutexLock lock(mutex_);
    collectors_.emplace(++last_id_, std::move(collector));
    return last_id_;
  }

  void Remove(uint64_t id) {
    MutexLock lock(mutex_);
    collectors_.erase(id);
  }

  bool empty() {
    MutexLock lock(mutex_);
    return collectors_.empty();
  }

  std::string Scrape() {
    const std::vector<prometheus::MetricFamily> families = Collect();
    std::ostringstream out;
    out.imbue(std::locale::classic());
    prometheus::TextSerializer().Serialize(out, families);
    return std::move(out).str();
  }

 private:
  std::vector<prometheus::MetricFamily> Collect() {
    MutexLock lock(mutex_);
    MetricWriter::Scrape scrape;
    MetricWriter writer(scrape);
    for (const auto& [id, collector] : collectors_) collector(writer);
    WriteErrors(scrape, writer);
    std::vector<prometheus::MetricFamily> families;
    for (size_t index = 0; index < kNumMetrics; ++index) {
      prometheus::MetricFamily& family = scrape.families[index].family;
      if (family.metric.empty()) continue;
      const MetricSpec& spec = MetricTable()[index];
      family.name = std::string(spec.name);
      family.help = std::string(spec.help);
      family.type = TypeOf(spec.type);
      families.push_back(std::move(family));
    }
    return families;
  }

  void WriteErrors(const MetricWriter::Scrape& scrape, MetricWriter& writer)
      MOEBIUS_REQUIRES(mutex_) {
    for (size_t index = 0; index < kNumErrorReasons; ++index) {
      errors_[index] += scrape.errors[index];
      uint64_t total = errors_[index];
      if (index == static_cast<size_t>(ErrorReason::kImpossibleValue)) total += scrape.clamped;
      writer.WriteCounter(Metric::kMetricsErrors, static_cast<double>(total),
                          {kErrorReasonNames[index]});
    }
  }

  Mutex mutex_;
  uint64_t last_id_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Collector> collectors_ MOEBIUS_GUARDED_BY(mutex_);  // in order of arrival
  std::array<uint64_t, kNumErrorReasons> errors_ MOEBIUS_GUARDED_BY(mutex_) = {};
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() { MOEBIUS_CHECK(impl_->empty()); }
Registry::Handle Registry::AddCollector(Collector collector) {
  return Handle(this, impl_->Add(std::move(collector)));
}
void Registry::Remove(uint64_t id) { impl_->Remove(id); }
std::string Registry::Scrape() { return impl_->Scrape(); }

Registry::Handle::~Handle() {
  if (registry_ != nullptr) registry_->Remove(id_);
}
Registry::Handle::Handle(Handle&& other) noexcept
    : registry_(std::exchange(other.registry_, nullptr)), id_(other.id_) {}
Registry::Handle& Registry::Handle::operator=(Handle&& other) noexcept {
  std::swap(registry_, other.registry_);
  std::swap(id_, other.id_);
  return *this;
}

}  // namespace moebius
