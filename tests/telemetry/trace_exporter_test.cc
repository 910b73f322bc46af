// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/trace_exporter.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/telemetry/registry.h"
#include "tests/telemetry/fake_collector.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

std::vector<TraceSpan> Spans(size_t count) {
  std::vector<TraceSpan> spans(count);
  for (size_t index = 0; index < count; ++index) {
    spans[index].trace = {1, 2};
    spans[index].id = TraceSpanId(index + 1);
    spans[index].name = "step";
    spans[index].begin = spans[index].end = absl::UnixEpoch();
  }
  return spans;
}

size_t CountOf(const std::string& text, absl::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(std::string(part), at)) != std::string::npos; ++at) ++count;
  return count;
}

class TraceExporterTest : public testing::Test {
 protected:
  TraceExporterTest() {
    options_.resource = {"moebius-router", "router-0", "1.2.3"};
    options_.max_wait = absl::Milliseconds(5);
    options_.retry_pause = absl::Milliseconds(5);
    options_.post_timeout = kPatience;
    UseCollector(collector_);
  }

  void UseCollector(const FakeCollector& collector) {
    options_.target = *ParseHttpTarget(collector.url(), "/");
  }
  void Start() { exporter_ = std::make_unique<TraceExporter>(options_); }

  // Whether spans met with one of the ends that `count` counts.
  template <typename Count>
  bool WaitFor(uint64_t num_spans, Count count) {
    const absl::Duration end = Clock::Monotonic().Now() + kPatience;
    while (count(exporter_->figures()) < num_spans) {
      if (Clock::Monotonic().Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  FakeCollector collector_;
  TraceExporterOptions options_;
  std::unique_ptr<TraceExporter> exporter_;
};

TEST_F(TraceExporterTest, SendsSpansInBatches) {
  options_.max_batch_spans = 4;
  Start();
  exporter_->Take(Spans(10));
  ASSERT_TRUE(WaitFor(10, [](const TraceFigures& f) { return f.exported; }));
  size_t sent = 0;
  for (const std::string& body : collector_.bodies()) {
    const size_t count = CountOf(body, "\"spanId\"");
    EXPECT_LE(count, 4u);
    EXPECT_THAT(body, HasSubstr("\"stringValue\":\"router-0\""));
    sent += count;
  }
  EXPECT_EQ(sent, 10u);
  EXPECT_EQ(exporter_->figures().dropped(), 0u);
  EXPECT_THAT(collector_.heads().at(0), HasSubstr("Content-Type: application/json\r\n"));
}

TEST_F(TraceExporterTest, WaitsForABatchToFillAndNoLonger) {
  options_.max_wait = absl::Milliseconds(200);
  Start();
  for (int i = 0; i < 5; ++i) exporter_->Take(Spans(1));
  ASSERT_TRUE(collector_.WaitForBodies(1));
  EXPECT_EQ(CountOf(collector_.bodies()[0], "\"spanId\""), 5u);
}

TEST_F(TraceExporterTest, DropsWhatASlowCollectorDoesNotKeepUpWithAndWaitsForNothing) {
  collector_.WaitBefore(kPatience);
  options_.max_queued_spans = 8;
  options_.max_batch_spans = 4;
  options_.stop_timeout = absl::Milliseconds(50);
  Start();
  const absl::Duration begin = Clock::Monotonic().Now();
  for (int i = 0; i < 100; ++i) exporter_->Take(Spans(3));
  EXPECT_LT(Clock::Monotonic().Now() - begin, kPatience / 4);
  const TraceFigures figures = exporter_->figures();
  EXPECT_EQ(figures.exported, 0u);
  EXPECT_GE(figures.queue_full, 300u - 8 - 4);
  EXPECT_EQ(figures.queue_full % 3, 0u) << "all of a call's spans or none";
}

TEST_F(TraceExporterTest, TriesAgainWhereTheCollectorSaysLater) {
  collector_.AnswerWith(503);
  options_.max_tries = 1000;
  options_.retry_pause = absl::ZeroDuration();
  Start();
  exporter_->Take(Spans(2));
  ASSERT_TRUE(collector_.WaitForBodies(2));
  collector_.AnswerWith(200);
  ASSERT_TRUE(WaitFor(2, [](const TraceFigures& f) { return f.exported; }));
  const std::vector<std::string> bodies = collector_.bodies();
  EXPECT_GE(bodies.size(), 3u);
  EXPECT_EQ(bodies.front(), bodies.back()) << "the same spans";
  EXPECT_EQ(exporter_->figures().dropped(), 0u);
}

TEST_F(TraceExporterTest, DropsWhatIsRefusedAtOnce) {
  collector_.AnswerWith(500);
  Start();
  exporter_->Take(Spans(2));
  ASSERT_TRUE(WaitFor(2, [](const TraceFigures& f) { return f.refused; }));
  EXPECT_EQ(collector_.bodies().size(), 1u);
}

TEST_F(TraceExporterTest, DropsWhatNobodyTakesAfterItsTries) {
  {
    const FakeCollector gone;
    UseCollector(gone);
  }
  Start();
  exporter_->Take(Spans(2));
  ASSERT_TRUE(WaitFor(2, [](const TraceFigures& f) { return f.unreachable; }));
  // It goes on with what comes after.
  exporter_->Take(Spans(3));
  ASSERT_TRUE(WaitFor(5, [](const TraceFigures& f) { return f.unreachable; }));
}

TEST_F(TraceExporterTest, SendsWhatIsQueuedBeforeItEnds) {
  options_.max_wait = kPatience;
  options_.max_batch_spans = 4;
  options_.stop_timeout = kPatience;
  Start();
  exporter_->Take(Spans(3));
  exporter_.reset();
  ASSERT_EQ(collector_.bodies().size(), 1u);
  EXPECT_EQ(CountOf(collector_.bodies()[0], "\"spanId\""), 3u);
}

TEST_F(TraceExporterTest, EndsWithinItsLimitWhateverTheCollectorDoes) {
  collector_.WaitBefore(kPatience);
  options_.max_batch_spans = 2;
  options_.stop_timeout = absl::Milliseconds(100);
  Start();
  exporter_->Take(Spans(100));
  const absl::Duration begin = Clock::Monotonic().Now();
  exporter_.reset();
  EXPECT_LT(Clock::Monotonic().Now() - begin, absl::Seconds(5));
}

TEST_F(TraceExporterTest, TellsOfDropsInTheLog) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const OwnedFd read_end(ends[0]), write_end(ends[1]);
  LogOptions log;
  log.fd = write_end.fd();
  log.name = "router-0";
  Logger logger(log);
  options_.logger = &logger;
  collector_.AnswerWith(400);
  Start();
  exporter_->Take(Spans(2));
  ASSERT_TRUE(WaitFor(2, [](const TraceFigures& f) { return f.refused; }));
  ASSERT_TRUE(logger.Flush(kPatience));
  char line[4096];
  const ssize_t size = read(read_end.fd(), line, sizeof(line));
  ASSERT_GT(size, 0);
  EXPECT_THAT(std::string(line, static_cast<size_t>(size)),
              AllOf(HasSubstr("warning router-0: trace spans were dropped reason=\"refused\" "
                              "spans=2 collector=\"127.0.0.1:"),
                    HasSubstr("the collector answered 400")));
  exporter_.reset();
}

TEST(TraceMetricsTest, HasEverySeriesFromZeroOn) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    WriteTraceMetrics({5, 1, 2, 3, 4}, writer);
  });
  EXPECT_THAT(registry.Scrape(),
              AllOf(HasSubstr("moebius_trace_spans_exported_total 5\n"),
                    HasSubstr("moebius_trace_spans_dropped_total{reason=\"queue_full\"} 1\n"),
                    HasSubstr("moebius_trace_spans_dropped_total{reason=\"unreachable\"} 2\n"),
                    HasSubstr("moebius_trace_spans_dropped_total{reason=\"refused\"} 3\n"),
                    HasSubstr("moebius_trace_spans_dropped_total{reason=\"stopped\"} 4\n")));
}

}  // namespace
}  // namespace moebius
