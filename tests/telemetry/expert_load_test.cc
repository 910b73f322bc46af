// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/expert_load.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Load {
  std::vector<int32_t> layer_ids;
  size_t num_experts = 0;
  std::vector<int64_t> counts;
  std::vector<int64_t> dropped = {};
};

std::string Show(const Load& load, ExpertDetail detail) {
  Registry registry;
  const auto handle = registry.AddCollector([&](MetricWriter& writer) {
    const std::vector<int64_t> active(load.layer_ids.size(), 3);
    WriteExpertLoad({load.layer_ids, load.num_experts, load.counts, load.dropped, active}, detail,
                    writer);
  });
  return registry.Scrape();
}

size_t CountLines(const std::string& text, const std::string& beginning) {
  size_t count = 0;
  for (size_t at = text.find("\n" + beginning); at != std::string::npos;
       at = text.find("\n" + beginning, at + 1)) {
    ++count;
  }
  return count;
}

TEST(ExpertLoadTest, ShowsEveryExpertOfEveryLayerFromZero) {
  const Load load = {{1, 3}, 4, {0, 0, 0, 0, 0, 10, 0, 1}};
  const std::string text = Show(load, ExpertDetail::kAuto);
  EXPECT_EQ(CountLines(text, "moebius_expert_assignments_total{"), 8u);
  EXPECT_THAT(text, HasSubstr("moebius_expert_assignments_total{layer=\"3\",expert=\"1\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_assignments_total{layer=\"3\",expert=\"3\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_assignments_total{layer=\"1\",expert=\"1\"} 0\n"));
  // 10 of 11 over a mean of 11 / 4; a layer without load is no division by zero.
  EXPECT_THAT(text, HasSubstr("moebius_expert_load_max_over_mean{layer_group=\"3\"} 3.636363636"));
  EXPECT_THAT(text, HasSubstr("moebius_expert_load_max_over_mean{layer_group=\"1\"} 0\n"));
}

TEST(ExpertLoadTest, ShowsWhatWasDroppedOnlyWhereACapacityIsSet) {
  Load load = {{1, 3}, 2, {5, 6, 7, 8}};
  EXPECT_THAT(Show(load, ExpertDetail::kAuto), Not(HasSubstr("expert_assignments_dropped_total{")));
  load.dropped = {0, 2, 0, 3};
  const std::string text = Show(load, ExpertDetail::kAuto);
  EXPECT_EQ(CountLines(text, "moebius_expert_assignments_dropped_total{"), 4u);
  EXPECT_THAT(text,
              HasSubstr("moebius_expert_assignments_dropped_total{layer=\"3\",expert=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("moebius_distinct_experts_active{layer_group=\"3\"} 3\n"));
}

TEST(ExpertLoadTest, ShowsTheTenHottestWhenThereAreTooMany) {
  Load load = {{0, 1, 2}, 700, std::vector<int64_t>(2100)};
  for (size_t expert = 0; expert < 700; ++expert) {
    load.counts[expert] = static_cast<int64_t>(expert);         // layer 0
    load.counts[1400 + expert] = static_cast<int64_t>(expert);  // layer 2
  }
  const std::string text = Show(load, ExpertDetail::kAuto);
  EXPECT_EQ(CountLines(text, "moebius_expert_assignments_total{"), 10u);
  EXPECT_THAT(text, HasSubstr("{layer=\"0\",expert=\"699\"} 699\n"));
  EXPECT_THAT(text, HasSubstr("{layer=\"2\",expert=\"695\"} 695\n"));
  EXPECT_THAT(text, Not(HasSubstr("expert=\"694\"")));
  EXPECT_EQ(CountLines(text, "moebius_expert_load_max_over_mean{"), 3u);
  EXPECT_EQ(CountLines(Show(load, ExpertDetail::kLayerExpert), "moebius_expert_assignments_total{"),
            2100u);
  EXPECT_EQ(CountLines(Show(load, ExpertDetail::kOff), "moebius_expert_assignments_total{"), 0u);
}

TEST(ExpertLoadTest, ScrapesTheLargestModelInTimeAndSpace) {
  Load load = {{}, 256, std::vector<int64_t>(58 * 256, 4'000'000'000)};  // 14,848
  for (int32_t layer = 3; layer < 61; ++layer) load.layer_ids.push_back(layer);
  const absl::Duration begin = Clock::Monotonic().Now();
  const std::string text = Show(load, ExpertDetail::kLayerExpert);
  const absl::Duration taken = Clock::Monotonic().Now() - begin;
  EXPECT_EQ(CountLines(text, "moebius_expert_assignments_total{"), 14848u);
  EXPECT_THAT(text, HasSubstr("moebius_metrics_errors_total{reason=\"too_many_series\"} 0\n"));
  EXPECT_LE(text.size(), 2u << 20);
  // The promise is 250 ms; a loaded machine with sanitizers gets five times that.
  EXPECT_LE(taken, absl::Milliseconds(1250));
  RecordProperty("bytes", absl::StrCat(text.size()));
  RecordProperty("microseconds", absl::StrCat(absl::ToInt64Microseconds(taken)));
}

TEST(ExpertDetailTest, ReadsWhatItNames) {
  for (const ExpertDetail detail :
       {ExpertDetail::kAuto, ExpertDetail::kOff, ExpertDetail::kLayerExpert}) {
    ExpertDetail read = ExpertDetail::kAuto;
    EXPECT_TRUE(ParseExpertDetail(ExpertDetailName(detail), &read));
    EXPECT_EQ(read, detail);
  }
  ExpertDetail read = ExpertDetail::kOff;
  EXPECT_FALSE(ParseExpertDetail("all", &read));
  EXPECT_EQ(read, ExpertDetail::kOff);
}

}  // namespace
}  // namespace moebius
