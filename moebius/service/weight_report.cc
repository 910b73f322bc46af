// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/weight_report.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "moebius/base/huge_pages.h"

namespace moebius {
namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(5);

}  // namespace

void WeightReport::LogProgress(int64_t loaded_bytes, int64_t total_bytes, ProcessNotices& notices) {
  const absl::Duration now = clock_.Now();
  {
    MutexLock lock(mutex_);
    const bool is_first = next_line_ == absl::ZeroDuration();
    if (!is_first && now < next_line_) return;
    next_line_ = now + kProgressInterval;
    if (is_first) return;
  }
  notices.Log(absl::StrCat("loading: ", loaded_bytes, " of ", total_bytes, " bytes of weights"));
}

void WeightReport::Log(const WeightLoadFigures& figures, ProcessNotices& notices) {
  for (const std::string& note : figures.notes) notices.Log(note);
  notices.Log(absl::StrCat("loaded ", DescribeWeightLoad(figures, HostHugePagePolicy())));
  MutexLock lock(mutex_);
  last_ = figures;
  next_line_ = absl::ZeroDuration();
}

void WeightReport::WriteMetrics(MetricWriter& writer) const {
  WeightLoadFigures last;
  {
    MutexLock lock(mutex_);
    last = last_;
  }
  const auto seconds = [&writer](absl::Duration time, absl::string_view phase) {
    writer.WriteGauge(Metric::kWeightsLoadSeconds, absl::ToDoubleSeconds(time), {phase});
  };
  seconds(last.read, "read");
  seconds(last.pack, "pack");
  seconds(last.cache_read, "cache_read");
  seconds(last.cache_write, "cache_write");
  seconds(last.total, "total");
  writer.WriteGauge(Metric::kWeightsHugePageBytes, static_cast<double>(last.huge_pages.asked_bytes),
                    {"asked"});
  writer.WriteGauge(Metric::kWeightsHugePageBytes, static_cast<double>(last.huge_pages.got_bytes),
                    {"got"});
  for (const PackedCacheOutcome outcome :
       {PackedCacheOutcome::kHit, PackedCacheOutcome::kMiss, PackedCacheOutcome::kStale,
        PackedCacheOutcome::kInvalid, PackedCacheOutcome::kWritten, PackedCacheOutcome::kRefused}) {
    writer.WriteCounter(Metric::kPackedCache, static_cast<double>(cache_.Count(outcome)),
                        {PackedCacheOutcomeName(outcome)});
  }
}

}  // namespace moebius
