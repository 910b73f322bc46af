// SPDX-License-Identifier: Apache-2.0
#include "router_service/metrics.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "tests/router_service/fake_rows.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

constexpr double kCapacity = 4 * 1000;  // FakeRows' pool, in tokens

GenerateRequest Request(std::vector<int64_t> ids, int64_t max_tokens) {
  GenerateRequest request;
  request.token_ids = std::move(ids);
  request.max_tokens = max_tokens;
  request.seed = 1;
  request.ignore_eos = true;
  return request;
}

class LeadMetricsTest : public testing::Test {
 protected:
  LeadMetricsTest() {
    options_.vocab_size = 97;
    options_.max_positions = 64;
    options_.schedule = {16, 8};
    lead_ = std::make_unique<Lead>(options_, &rows_, &executor_, nullptr, clock_);
    handle_ =
        registry_.AddCollector([this](MetricWriter& writer) { WriteLeadMetrics(*lead_, writer); });
  }

  std::shared_ptr<GenerateStream> Submit(const GenerateRequest& request) {
    auto stream = lead_->Submit(request);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *stream;
  }
  void RunAll() {
    while (lead_->RunOneStep()) {
    }
  }
  double Value(const std::string& series) { return ValueOf(registry_.Scrape(), series); }

  LeadOptions options_;
  FakeRows rows_;
  Executor executor_{1};
  FakeClock clock_;
  std::unique_ptr<Lead> lead_;
  Registry registry_;
  Registry::Handle handle_;
};

TEST_F(LeadMetricsTest, ShowEverySeriesBeforeTheFirstRequest) {
  const std::string scrape = registry_.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_queued"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_capacity_tokens"), kCapacity);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_rejected_total{reason=\"resource_exhausted\"}"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_failed_total{reason=\"unavailable\"}"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_step_phase_seconds_total{phase=\"attention\"}"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"routed\"}"), 0);
  EXPECT_EQ(MetricsErrors(scrape), 0);
}

TEST_F(LeadMetricsTest, CountTokensAndStepsExactly) {
  auto stream = Submit(Request({1, 2, 3}, 5));
  EXPECT_EQ(Value("moebius_requests_queued"), 1);
  EXPECT_EQ(Value("moebius_sessions_running"), 0);
  lead_->RunOneStep();
  EXPECT_EQ(Value("moebius_requests_queued"), 0);
  EXPECT_EQ(Value("moebius_sessions_running"), 1);
  EXPECT_EQ(Value("moebius_kv_reserved_tokens"), 8);  // 3 + 5 in blocks of 4
  EXPECT_EQ(Value("moebius_kv_capacity_tokens"), kCapacity);
  RunAll();
  const std::string scrape = registry_.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_sessions_running"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_reserved_tokens"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_finished_total"), 1);
  EXPECT_EQ(ValueOf(scrape, "moebius_prompt_tokens_total"), 3);
  EXPECT_EQ(ValueOf(scrape, "moebius_generated_tokens_total"), 5);
  // The prompt, then four tokens; the last is told and never run.
  EXPECT_EQ(ValueOf(scrape, "moebius_steps_total"), 5);
  EXPECT_EQ(ValueOf(scrape, "moebius_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(ValueOf(scrape, "moebius_inter_token_latency_seconds_count"), 4);
}

TEST_F(LeadMetricsTest, MeasureFromTheSubmissionAndFromTokenToToken) {
  rows_.before_step = [this](const StepRequest&) {
    clock_.Advance(absl::Milliseconds(250));
    return absl::OkStatus();
  };
  auto stream = Submit(Request({1, 2, 3}, 3));
  clock_.Advance(absl::Seconds(2));  // in the queue
  RunAll();
  const std::string scrape = registry_.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_queue_wait_seconds_sum"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_time_to_first_token_seconds_sum"), 2.25);
  EXPECT_EQ(ValueOf(scrape, "moebius_inter_token_latency_seconds_sum"), 0.5);
  EXPECT_EQ(ValueOf(scrape, "moebius_inter_token_latency_seconds_bucket{le=\"0.25\"}"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_inter_token_latency_seconds_bucket{le=\"0.1\"}"), 0);
}

TEST_F(LeadMetricsTest, AreBackAtZeroAfterEveryKindOfEnd) {
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (int64_t index = 0; index < 100; ++index) {
    GenerateRequest request = Request({index % 90, 2, 3}, 4);
    if (index % 4 == 1) request.deadline = absl::Milliseconds(1);
    if (index % 4 == 3) request.token_ids = {200};  // not in the vocabulary
    auto stream = lead_->Submit(request);
    EXPECT_EQ(stream.ok(), index % 4 != 3);
    if (!stream.ok()) continue;
    if (index % 4 == 2) (*stream)->Cancel();
    streams.push_back(*std::move(stream));
  }
  clock_.Advance(absl::Milliseconds(1));
  RunAll();
  const std::string scrape = registry_.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_finished_total"), 25);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_cancelled_total"), 25);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_failed_total{reason=\"deadline_exceeded\"}"), 25);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_rejected_total{reason=\"invalid_argument\"}"), 25);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_queued"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_sessions_running"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_kv_reserved_tokens"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_generated_tokens_total"), 100);
  EXPECT_EQ(MetricsErrors(scrape), 0);
}

TEST_F(LeadMetricsTest, CountWhatIsDoneAgainApart) {
  int failures = 2;
  rows_.before_step = [&](const StepRequest&) {
    return failures-- > 0 ? absl::AbortedError("try again") : absl::OkStatus();
  };
  auto stream = Submit(Request({1, 2, 3}, 2));
  RunAll();
  const std::string scrape = registry_.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_steps_total"), 4);
  EXPECT_EQ(ValueOf(scrape, "moebius_step_retries_total"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_generated_tokens_total"), 2);
}

TEST(LeadMeterTest, AddsTheFiguresOfStepsThatWereDone) {
  LeadMeter meter;
  StepResult result;
  result.figures.attention_seconds = 0.25;
  result.figures.expert_seconds = 0.5;
  result.figures.stall_seconds = 0.125;
  result.figures.num_rows = 10;
  result.figures.assignments = 80;
  result.figures.dropped = 3;
  result.figures.rerouted = 4;
  result.figures.combined = 77;
  result.figures.dispatched_rows = 33;
  result.figures.reply_rows = 40;
  result.figures.resends = 2;
  result.figures.resent_rows = 7;
  result.figures.group_fill_mismatches = 1;
  result.nonfinite_rows = {4, 5};
  result.rejected_rows = {{7, LayerId(1), 2}};
  meter.OnStep(absl::OkStatus(), result);
  meter.OnStep(absl::OkStatus(), result);
  meter.OnStep(absl::UnavailableError("gone"), result);
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { meter.WriteMetrics(writer); });
  const std::string scrape = registry.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_step_phase_seconds_total{phase=\"attention\"}"), 0.5);
  EXPECT_EQ(ValueOf(scrape, "moebius_step_phase_seconds_total{phase=\"experts\"}"), 1);
  EXPECT_EQ(ValueOf(scrape, "moebius_step_stall_seconds_total"), 0.25);
  EXPECT_EQ(ValueOf(scrape, "moebius_step_rows_total"), 20);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"routed\"}"), 160);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"combined\"}"), 154);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_dropped_total{reason=\"capacity\"}"), 6);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_rerouted_total"), 8);
  EXPECT_EQ(ValueOf(scrape, "moebius_capacity_rejected_rows_total"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_token_conservation_errors_total"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_dispatched_rows_total"), 66);
  EXPECT_EQ(ValueOf(scrape, "moebius_reply_rows_total"), 80);
  EXPECT_EQ(ValueOf(scrape, "moebius_recomputed_total{what=\"dispatch_rounds\"}"), 4);
  EXPECT_EQ(ValueOf(scrape, "moebius_recomputed_total{what=\"rows\"}"), 14);
  EXPECT_EQ(ValueOf(scrape, "moebius_gate_group_fill_mismatch_total"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_nonfinite_rows_total{stage=\"step\"}"), 4);
  EXPECT_EQ(ValueOf(scrape, "moebius_steps_total"), 3);
  EXPECT_EQ(ValueOf(scrape, "moebius_step_retries_total"), 1);
}

TEST(LeadMeterTest, CountsAStepThatFailedForConservationAndAnswersThatAreNotExact) {
  LeadMeter meter;
  StepResult result;
  result.figures.assignments = 8;
  result.figures.conservation_errors = 2;
  meter.OnStep(absl::InternalError("lost"), result);
  Exactness exactness;
  meter.OnFinished(exactness);
  exactness.dropped = 1;
  meter.OnFinished(exactness);
  StepFigures forward;
  forward.assignments = 5;
  meter.OnForward(forward, exactness);
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { meter.WriteMetrics(writer); });
  const std::string scrape = registry.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_token_conservation_errors_total"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_degraded_responses_total{reason=\"capacity\"}"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_requests_finished_total"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"routed\"}"), 5)
      << "a failed step has no assignments";
}

TEST(RefusalMetricsTest, ShowWhoWasNotLetIn) {
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { WriteRefusalMetrics(3, "grpc", writer); });
  EXPECT_EQ(ValueOf(registry.Scrape(),
                    "moebius_transport_errors_total{transport=\"grpc\",reason=\"join_refused\"}"),
            3);
}

TEST(ExpertLoadMetricsTest, ShowTheTableOfTheRouter) {
  ExpertLoadTable table;
  table.layer_ids = {1, 2};
  table.num_experts = 2;
  table.demand = {5, 6, 7, 8};
  table.dropped = {0, 0, 0, 0};
  table.active = {2, 2};
  Registry registry;
  const auto handle = registry.AddCollector(
      [&](MetricWriter& writer) { WriteExpertLoadMetrics(table, ExpertDetail::kAuto, writer); });
  EXPECT_EQ(
      ValueOf(registry.Scrape(), "moebius_expert_assignments_total{layer=\"2\",expert=\"0\"}"), 7);
}

}  // namespace
}  // namespace moebius
