// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cli/bench/ceilings.h"
#include "cli/bench/message_channel.h"
#include "cli/bench/report.h"
#include "cli/bench/transport_bench.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

BenchReport ReportOf(double value, double ratio) {
  BenchReport report = MakeBenchReport(1);
  BenchResult result = Summarize("a.rate", "B/s", BenchSense::kRate, {value});
  CompareWith("ceiling", {value}, {value / ratio}, 0.9, &result);
  report.results = {result, Summarize("a.time", "s", BenchSense::kTime, {2 * value})};
  return report;
}

TEST(BenchReportTest, TheMedianStandsForTheRepetitions) {
  const BenchResult result = Summarize("x", "B/s", BenchSense::kRate, {9, 2, 4, 3, 5});
  EXPECT_EQ(result.value, 4);
  EXPECT_EQ(result.spread, (9.0 - 2.0) / 4.0);
  EXPECT_EQ(Median({1, 4}), 2.5);
}

TEST(BenchReportTest, RatiosAreHigherIsBetterForRatesAndTimes) {
  BenchResult rate = Summarize("x", "B/s", BenchSense::kRate, {8, 8});
  CompareWith("ceiling", {8, 8}, {10, 10}, 0.9, &rate);
  EXPECT_EQ(rate.baseline->ratio, 0.8);
  EXPECT_FALSE(rate.MeetsTarget());
  BenchResult time = Summarize("x", "s", BenchSense::kTime, {4, 4});
  CompareWith("ceiling", {4, 4}, {3, 3}, 0.667, &time);
  EXPECT_EQ(time.baseline->ratio, 0.75);
  EXPECT_TRUE(time.MeetsTarget());
}

TEST(BenchReportTest, ARatioIsTheMedianOfThoseMeasuredSideBySide) {
  // The machine was ten times slower in the second repetition, and the ratio does not see it.
  BenchResult result = Summarize("x", "B/s", BenchSense::kRate, {90, 9, 90});
  CompareWith("ceiling", {90, 9, 90}, {100, 10, 100}, std::nullopt, &result);
  EXPECT_DOUBLE_EQ(result.baseline->ratio, 0.9);
  EXPECT_TRUE(result.MeetsTarget());
}

TEST(BenchReportTest, JsonHasTheFieldsThatScriptsRead) {
  const Json json = ReportToJson(ReportOf(6, 0.75));
  for (const char* key : {"host", "cpu", "tier", "threads", "date", "seed"}) {
    EXPECT_NE(json.Find(key), nullptr) << key;
  }
  const std::vector<Json>& results = json.Find("results")->elements();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].ToCanonicalText(),
            R"({"baseline":"ceiling","baseline_value":8,"name":"a.rate","ratio":0.75,)"
            R"("spread":0,"target":0.9,"unit":"B/s","value":6})");
  EXPECT_EQ(results[1].ToCanonicalText(),
            R"({"baseline":null,"baseline_value":null,"name":"a.time","ratio":null,)"
            R"("spread":0,"target":null,"unit":"s","value":12})");
}

TEST(BenchReportTest, ComparesWhatTwoReportsHaveInCommon) {
  BenchReport after = ReportOf(12, 0.5);
  after.results.push_back(Summarize("new", "s", BenchSense::kTime, {1}));
  const auto changes =
      CompareReports("old", ReportToJson(ReportOf(6, 0.75)), "new", ReportToJson(after));
  ASSERT_TRUE(changes.ok()) << changes.status();
  ASSERT_EQ(changes->size(), 2u);
  EXPECT_EQ((*changes)[0].name, "a.rate");
  EXPECT_EQ((*changes)[0].before, 6);
  EXPECT_EQ((*changes)[0].after, 12);
  EXPECT_EQ((*changes)[0].ratio_before, 0.75);
  EXPECT_EQ((*changes)[0].ratio_after, 0.5);
  EXPECT_FALSE((*changes)[1].ratio_after.has_value());
}

TEST(BenchReportTest, RefusesToCompareWhatIsNoReport) {
  const Json report = ReportToJson(ReportOf(1, 1));
  for (const char* text : {"{}", "[]", R"({"results": 1})", R"({"results": [{"name": "x"}]})",
                           R"({"results": [{"name": "x", "unit": "s", "value": "fast"}]})"}) {
    const Json json = *Json::Parse(text, "x");
    const auto changes = CompareReports("old", report, "bad.json", json);
    EXPECT_EQ(changes.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(changes.status().message()), HasSubstr("bad.json")) << text;
  }
}

TEST(TransportBenchTest, RefusesWhatCannotBeMeasuredWithAHint) {
  TransportBenchOptions options;
  options.transports = {"carrier-pigeon"};
  EXPECT_THAT(HintOf(ValidateOptions(options)), HasSubstr("loopback"));
  options.transports = {"loopback"};
  EXPECT_TRUE(ValidateOptions(options).ok());
  for (const int64_t bytes : {int64_t{0}, int64_t{-16}, int64_t{100}, int64_t{1} << 40}) {
    options.message_bytes = {bytes};
    EXPECT_FALSE(ValidateOptions(options).ok()) << bytes;
  }
}

TEST(TransportBenchTest, MeasuresTheLoopbackInThisProcess) {
  TransportBenchOptions options;
  options.transports = {"loopback"};
  options.message_bytes = {64, 2 << 20};  // the second is a message of several frames
  options.duration = absl::Milliseconds(2);
  options.repetitions = 2;
  int last_done = 0;
  int announced_total = 0;
  const auto report = RunTransportBench(options, [&](int done, int total, const std::string& next) {
    EXPECT_THAT(next, HasSubstr("loopback"));
    last_done = done;
    announced_total = total;
  });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(last_done + 1, announced_total);
  std::vector<std::string> names;
  for (const BenchResult& result : report->results) {
    names.push_back(result.name);
    EXPECT_GT(result.value, 0) << result.name;
  }
  EXPECT_THAT(names, testing::ElementsAre(
                         "transport.loopback.64.bandwidth", "transport.loopback.64.cpu",
                         "transport.loopback.2097152.bandwidth", "transport.loopback.2097152.cpu",
                         "transport.loopback.round_trip"));
}

TEST(CeilingsTest, AFutexOfAnotherSideIsAnswered) {
  auto ping = FutexPing::Make();
  ASSERT_TRUE(ping.ok()) << ping.status();
  std::atomic<bool> stopping{false};
  std::thread other([&] { EXPECT_TRUE(AnswerFutexPings((*ping)->descriptor(), stopping).ok()); });
  const auto round_trip = (*ping)->Measure(absl::Milliseconds(5));
  stopping.store(true);
  other.join();
  ASSERT_TRUE(round_trip.ok()) << round_trip.status();
  EXPECT_GT(*round_trip, absl::ZeroDuration());
}

}  // namespace
}  // namespace moebius
