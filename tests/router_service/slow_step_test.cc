// SPDX-License-Identifier: Apache-2.0
#include "router_service/slow_step.h"

#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/owned_fd.h"
#include "router_service/lead.h"
#include "tests/router_service/fake_rows.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kLimit = absl::Seconds(1);

StepFigures Figures(int64_t num_rows, double attention, double experts) {
  StepFigures figures;
  figures.num_rows = num_rows;
  figures.attention_seconds = attention;
  figures.expert_seconds = experts;
  return figures;
}

TEST(StepWatchTest, AStepUpToTheLimitIsNotSlow) {
  StepWatch watch(kLimit);
  EXPECT_FALSE(watch.Judge(absl::OkStatus(), kLimit, Figures(1, 0, 1)).has_value());
  EXPECT_TRUE(
      watch.Judge(absl::OkStatus(), kLimit + absl::Nanoseconds(1), Figures(1, 0, 1)).has_value());
}

TEST(StepWatchTest, NamesTheStageThatTookLongestAndWhatItUsuallyTakes) {
  StepWatch watch(kLimit);
  for (const double experts : {0.1, 0.3}) {
    watch.Judge(absl::OkStatus(), absl::Seconds(0.5), Figures(2, 0.2, experts));
  }
  const auto slow = watch.Judge(absl::OkStatus(), absl::Seconds(4), Figures(3, 0.5, 3));
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->stage, StepStage::kExperts);
  EXPECT_EQ(slow->seconds, 3);
  ASSERT_TRUE(slow->usual_seconds.has_value());
  EXPECT_DOUBLE_EQ(*slow->usual_seconds, 0.2);
}

TEST(StepWatchTest, ComparesWithStepsOfAsManyRowsAlone) {
  StepWatch watch(kLimit);
  watch.Judge(absl::OkStatus(), absl::Seconds(0.5), Figures(512, 0, 0.5));
  const auto slow = watch.Judge(absl::OkStatus(), absl::Seconds(4), Figures(1, 0, 3));
  ASSERT_TRUE(slow.has_value());
  EXPECT_FALSE(slow->usual_seconds.has_value());
}

TEST(StepWatchTest, LearnsNeitherFromSlowStepsNorFromThoseThatFail) {
  StepWatch watch(kLimit);
  watch.Judge(absl::UnavailableError("gone"), absl::Seconds(0.5), Figures(1, 0, 0.5));
  watch.Judge(absl::OkStatus(), absl::Seconds(9), Figures(1, 0, 9));
  const auto slow = watch.Judge(absl::UnavailableError("gone"), absl::Seconds(4), Figures(1, 0, 3));
  ASSERT_TRUE(slow.has_value()) << "one that failed is slow all the same";
  EXPECT_FALSE(slow->usual_seconds.has_value());
}

TEST(StepWatchTest, TimeThatNoPhaseHasIsOther) {
  StepWatch watch(kLimit);
  const auto slow = watch.Judge(absl::OkStatus(), absl::Seconds(4), Figures(1, 1, 0.5));
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->stage, StepStage::kOther);
  EXPECT_DOUBLE_EQ(slow->seconds, 2.5);
}

TEST(StepWatchTest, TakesStepsOfAnySize) {
  StepWatch watch(kLimit);
  for (const int64_t num_rows : {int64_t{0}, int64_t{1} << 16, int64_t{1} << 40}) {
    watch.Judge(absl::OkStatus(), absl::Seconds(0.1), Figures(num_rows, 0.1, 0));
    EXPECT_TRUE(watch.Judge(absl::OkStatus(), absl::Seconds(2), Figures(num_rows, 2, 0)));
  }
}

// A lead whose steps take as long, by a clock that stands still otherwise, as the test says.
class SlowStepTest : public testing::Test {
 protected:
  SlowStepTest() {
    options_.vocab_size = 97;
    options_.max_positions = 64;
    options_.schedule = {32, 32};
    rows_.before_step = [this](const StepRequest&) {
      clock_.Advance(takes_);
      return absl::OkStatus();
    };
    rows_.after_step = [this](StepResult* result) {
      result->figures.expert_seconds = absl::ToDoubleSeconds(takes_);
      result->slowest_service = ServiceWait{ServiceId(1), takes_};
    };
    lead_ = std::make_unique<Lead>(options_, &rows_, &executor_, nullptr, clock_);
    lead_->SetOnSlowStep([this](const SlowStep& slow) { told_.push_back(slow); });
  }

  std::shared_ptr<GenerateStream> Submit(const std::string& id) {
    GenerateRequest request;
    request.request_id = id;
    request.token_ids = {1, 2};
    request.max_tokens = 3;
    request.temperature = 0;
    return *lead_->Submit(request);
  }

  int64_t NumCounted(StepStage stage) const {
    return lead_->counters().slow_steps[static_cast<size_t>(stage)];
  }

  LeadOptions options_;
  FakeRows rows_;
  Executor executor_{1};
  FakeClock clock_;
  absl::Duration takes_ = absl::Milliseconds(10);
  std::vector<SlowStep> told_;
  std::unique_ptr<Lead> lead_;
};

TEST_F(SlowStepTest, IsCountedAndToldWithItsRequestsTheStageAndTheService) {
  const auto first = Submit("a"), second = Submit("b");
  ASSERT_TRUE(lead_->RunOneStep());
  ASSERT_TRUE(lead_->RunOneStep());
  EXPECT_THAT(told_, SizeIs(0));
  takes_ = absl::Milliseconds(2500);
  ASSERT_TRUE(lead_->RunOneStep());
  ASSERT_THAT(told_, SizeIs(1));
  const SlowStep& slow = told_.front();
  EXPECT_EQ(slow.took, takes_);
  EXPECT_EQ(slow.num_rows, 2);
  EXPECT_EQ(slow.slowest.stage, StepStage::kExperts);
  EXPECT_EQ(slow.slowest.seconds, 2.5);
  ASSERT_TRUE(slow.slowest.usual_seconds.has_value());
  EXPECT_DOUBLE_EQ(*slow.slowest.usual_seconds, 0.01);
  ASSERT_TRUE(slow.expert_service.has_value());
  EXPECT_EQ(slow.expert_service->service, ServiceId(1));
  EXPECT_EQ(slow.num_requests, 2);
  EXPECT_THAT(slow.request_ids, ElementsAre("a", "b"));
  EXPECT_EQ(NumCounted(StepStage::kExperts), 1);
  EXPECT_EQ(NumCounted(StepStage::kAttention), 0);
}

TEST_F(SlowStepTest, NamesTheFirstOfManyRequests) {
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (int i = 0; i < 12; ++i) streams.push_back(Submit(std::to_string(i)));
  takes_ = absl::Seconds(2);
  ASSERT_TRUE(lead_->RunOneStep());
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_EQ(told_.front().num_requests, 12);
  EXPECT_THAT(told_.front().request_ids, ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
}

TEST_F(SlowStepTest, OneThatFailsIsToldWithItsStatus) {
  const auto stream = Submit("a");
  rows_.before_step = [this](const StepRequest&) {
    clock_.Advance(absl::Seconds(10));
    return absl::UnavailableError("expert-1 is silent");
  };
  ASSERT_TRUE(lead_->RunOneStep());
  ASSERT_FALSE(told_.empty());
  EXPECT_EQ(told_.front().slowest.stage, StepStage::kOther);
  EXPECT_TRUE(absl::IsUnavailable(told_.front().status));
}

TEST(SlowStepLogTest, ALineSaysWhichRequestsWaitedForWhatAndForHowLong) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  const OwnedFd read_end(ends[0]), write_end(ends[1]);
  LogOptions options;
  options.fd = write_end.fd();
  options.name = "router-0";
  Logger logger(options);
  SlowStep slow;
  slow.step = 17;
  slow.num_rows = 2;
  slow.took = absl::Milliseconds(2500);
  slow.slowest = {StepStage::kExperts, 2.25, 0.125};
  slow.expert_service = ServiceWait{ServiceId(1), absl::Milliseconds(2250)};
  slow.num_requests = 2;
  slow.request_ids = {"a", "b"};
  for (int i = 0; i < 30; ++i) WriteLogLine(slow, logger);
  ASSERT_TRUE(logger.Flush(absl::Seconds(20)));
  std::string text(65536, ' ');
  const ssize_t size = read(read_end.fd(), text.data(), text.size());
  ASSERT_GT(size, 0);
  text.resize(static_cast<size_t>(size));
  EXPECT_THAT(text, HasSubstr("warning router-0: a step was slow step=17 attempt=0 rows=2 "
                              "seconds=2.5 stage=\"experts\" stage_seconds=2.25 "
                              "usual_stage_seconds=0.125 expert_slot=1 expert_slot_seconds=2.25 "
                              "requests=2 request_ids=\"a,b\"\n"));
  EXPECT_EQ(logger.figures().suppressed, 20u) << "ten a minute";
}

}  // namespace
}  // namespace moebius
