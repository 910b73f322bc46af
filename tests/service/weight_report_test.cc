// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/weight_report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class LogKeeper final : public ProcessNotices {
 public:
  void Log(absl::string_view sentence) override { lines.emplace_back(sentence); }
  void Announce(absl::string_view) override {}
  void Fail(const absl::Status&) override {}

  std::vector<std::string> lines;
};

TEST(WeightReportTest, SaysHowFarALoadHasComeEveryFiveSeconds) {
  FakeClock clock;
  clock.Advance(absl::Seconds(1));
  const PackedCache cache({});
  WeightReport report(cache, clock);
  LogKeeper log;
  for (int second = 0; second <= 11; ++second) {
    report.LogProgress(second, 100, log);
    clock.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(log.lines, ElementsAre("loading: 5 of 100 bytes of weights",
                                     "loading: 10 of 100 bytes of weights"));
  report.Log({}, log);
  // The next load begins anew.
  report.LogProgress(1, 100, log);
  EXPECT_EQ(log.lines.size(), 3u);
}

TEST(WeightReportTest, LogsEachLoadAndShowsTheLastOne) {
  const PackedCache cache({});
  WeightReport report(cache);
  LogKeeper log;
  Registry registry;
  const auto collector =
      registry.AddCollector([&](MetricWriter& writer) { report.WriteMetrics(writer); });
  EXPECT_THAT(registry.Scrape(), HasSubstr("moebius_packed_cache_total{outcome=\"hit\"} 0"));
  WeightLoadFigures figures;
  figures.bytes = 4 << 20;
  figures.num_threads = 2;
  figures.total = absl::Milliseconds(1500);
  figures.read = absl::Seconds(2);
  figures.pack = absl::Milliseconds(250);
  figures.huge_pages = {4 << 20, 2 << 20};
  figures.notes = {"the cache is damaged"};
  report.Log(figures, log);
  EXPECT_THAT(log.lines,
              ElementsAre("the cache is damaged",
                          "loaded 4194304 bytes of weights in 1.50 s with 2 threads: read 2.00 s, "
                          "pack 0.25 s; huge pages: 4194304 bytes asked, 2097152 got"));
  EXPECT_THAT(registry.Scrape(),
              AllOf(HasSubstr("moebius_weights_load_seconds{phase=\"total\"} 1.5"),
                    HasSubstr("moebius_weights_load_seconds{phase=\"pack\"} 0.25"),
                    HasSubstr("moebius_weights_huge_page_bytes{state=\"asked\"} 4194304"),
                    HasSubstr("moebius_weights_huge_page_bytes{state=\"got\"} 2097152")));
}

}  // namespace
}  // namespace moebius
