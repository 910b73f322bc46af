// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/registry.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RegistryTest, ShowsWhatCollectorsWriteInThePrometheusFormat) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    writer.WriteCounter(Metric::kSteps, 3);
    writer.WriteGauge(Metric::kTransportPeers, 2, {"grpc", "connected"});
  });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("# HELP moebius_steps_total Steps that were tried"));
  EXPECT_THAT(text, HasSubstr("# TYPE moebius_steps_total counter\nmoebius_steps_total 3\n"));
  EXPECT_THAT(text,
              HasSubstr("moebius_transport_peers{transport=\"grpc\",state=\"connected\"} 2\n"));
  // What nobody writes is not there.
  EXPECT_THAT(text, Not(HasSubstr("moebius_kv_blocks")));
}

TEST(RegistryTest, KeepsEveryDigitOfACount) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    writer.WriteCounter(Metric::kTransportCopiedBytes, 9007199254740991.0, {"grpc", "bulk"});
  });
  EXPECT_THAT(registry.Scrape(), HasSubstr("lane=\"bulk\"} 9007199254740991\n"));
}

TEST(RegistryTest, PutsAValueInTheFirstBucketThatHoldsIt) {
  Registry registry;
  Histogram histogram(Metric::kExpertBatchRows);  // buckets 1, 2, 4, …, 1024, 4096
  for (const double rows : {1.0, 2.0, 3.0, 4.0, 5000.0}) histogram.Observe(rows);
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { writer.WriteHistogram(histogram); });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_bucket{le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_bucket{le=\"2\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_bucket{le=\"4\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_bucket{le=\"4096\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_bucket{le=\"+Inf\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_count 5\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_batch_rows_sum 5010\n"));
}

TEST(RegistryTest, ClampsWhatCannotBeTrueAndCountsIt) {
  Registry registry;
  Histogram histogram(Metric::kQueueWaitSeconds);
  histogram.Observe(absl::Seconds(-1));  // a clock that stepped back
  histogram.Observe(std::numeric_limits<double>::quiet_NaN());
  const auto handle = registry.AddCollector([&](MetricWriter& writer) {
    writer.WriteCounter(Metric::kSteps, -4);
    writer.WriteGauge(Metric::kKvCacheUsageRatio, std::nan(""));
    writer.WriteHistogram(histogram);
  });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("moebius_steps_total 0\n"));
  EXPECT_THAT(text, HasSubstr("moebius_kv_cache_usage_ratio 0\n"));
  EXPECT_THAT(text, HasSubstr("moebius_queue_wait_seconds_count 2\n"));
  EXPECT_THAT(text, HasSubstr("moebius_queue_wait_seconds_sum 0\n"));
  EXPECT_THAT(text, HasSubstr("moebius_metrics_errors_total{reason=\"impossible_value\"} 4\n"));
}

TEST(RegistryTest, LeavesOutASeriesThatIsThereAlready) {
  Registry registry;
  const auto one = registry.AddCollector(
      [](MetricWriter& writer) { writer.WriteCounter(Metric::kNonfiniteRows, 1, {"step"}); });
  const auto two = registry.AddCollector(
      [](MetricWriter& writer) { writer.WriteCounter(Metric::kNonfiniteRows, 2, {"step"}); });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("moebius_nonfinite_rows_total{stage=\"step\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("moebius_nonfinite_rows_total{stage=\"step\"} 2\n")));
  EXPECT_THAT(text, HasSubstr("moebius_metrics_errors_total{reason=\"duplicate\"} 1\n"));
}

TEST(RegistryTest, BoundsTheSeriesOfAMetric) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    for (int index = 0; index < 300; ++index) {
      writer.WriteCounter(Metric::kNonfiniteRows, 1, {absl::StrCat("stage", index)});
    }
  });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("{stage=\"stage255\"}"));
  EXPECT_THAT(text, Not(HasSubstr("{stage=\"stage256\"}")));
  EXPECT_THAT(text, HasSubstr("moebius_metrics_errors_total{reason=\"too_many_series\"} 44\n"));
}

TEST(RegistryTest, CountsWrongLabelsInsteadOfShowingThem) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    writer.WriteCounter(Metric::kSteps, 1, {"what"});
    writer.WriteGauge(Metric::kStepRetries, 1);
  });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, Not(HasSubstr("moebius_step")));
  EXPECT_THAT(text, HasSubstr("moebius_metrics_errors_total{reason=\"wrong_labels\"} 2\n"));
}

TEST(RegistryTest, MakesLabelValuesPrintableAndShort) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    writer.WriteGauge(Metric::kBuildInfo, 1, {"a\n\"\xff", std::string(1000, 'x')});
  });
  EXPECT_THAT(registry.Scrape(), HasSubstr(absl::StrCat("{service=\"a?\\\"?\",version=\"",
                                                        std::string(128, 'x'), "\"} 1\n")));
}

TEST(RegistryTest, ForgetsACollectorWithItsHandle) {
  Registry registry;
  auto handle =
      registry.AddCollector([](MetricWriter& writer) { writer.WriteCounter(Metric::kSteps, 1); });
  EXPECT_THAT(registry.Scrape(), HasSubstr("moebius_steps_total"));
  handle = Registry::Handle();
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("moebius_steps_total")));
}

TEST(RegistryTest, StartsAgainInOneProcessAndTwiceAtOnce) {
  for (int life = 0; life < 3; ++life) {
    Registry one;
    Registry other;
    const auto in_one =
        one.AddCollector([](MetricWriter& writer) { writer.WriteCounter(Metric::kSteps, 1); });
    const auto in_other =
        other.AddCollector([](MetricWriter& writer) { writer.WriteCounter(Metric::kSteps, 2); });
    EXPECT_THAT(one.Scrape(), HasSubstr("moebius_steps_total 1\n"));
    EXPECT_THAT(other.Scrape(), HasSubstr("moebius_steps_total 2\n"));
  }
}

TEST(RegistryTest, NeverRunsACollectorWhoseHandleIsGone) {
  Registry registry;
  std::atomic<bool> stop{false};
  std::thread scraper([&] {
    while (!stop.load()) registry.Scrape();
  });
  for (int life = 0; life < 200; ++life) {
    auto counter = std::make_unique<Counter>();
    const auto handle = registry.AddCollector([pointer = counter.get()](MetricWriter& writer) {
      writer.WriteCounter(Metric::kSteps, *pointer);
    });
    counter->Add();
    // The handle goes first, then what its collector reads.
  }
  stop.store(true);
  scraper.join();
}

TEST(RegistryTest, CountsEveryAdditionOfManyThreads) {
  Counter counter;
  Histogram histogram(Metric::kExpertBatchRows);
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10000; ++round) {
        counter.Add(2);
        histogram.Observe(3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 80000u);
  EXPECT_EQ(histogram.figures().count(), 40000u);
  EXPECT_EQ(histogram.figures().sum, 120000);
}

TEST(MetricTableTest, NamesEachMetricOnceInTheWordsOfTheFormat) {
  std::set<absl::string_view> names;
  for (const MetricSpec& spec : MetricTable()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_THAT(std::string(spec.name), testing::MatchesRegex("(moebius|process)_[a-z_]+"));
    EXPECT_TRUE(absl::EndsWith(spec.help, ".")) << spec.name;
    EXPECT_LE(spec.buckets.size(), kMaxBuckets) << spec.name;
    // A base unit is part of the name.
    if (!spec.unit.empty()) {
      EXPECT_THAT(std::string(spec.name), HasSubstr(std::string(spec.unit)));
    }
  }
}

}  // namespace
}  // namespace moebius
