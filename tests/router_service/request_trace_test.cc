// SPDX-License-Identifier: Apache-2.0
#include "router_service/request_trace.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "router_service/lead.h"
#include "tests/router_service/fake_rows.h"
#include "tests/router_service/span_list.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kSampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kNotSampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
constexpr absl::string_view kPhases[] = {"attention", "gate", "dispatch", "forward", "combine"};

std::vector<std::string> NamesOf(const std::vector<TraceSpan>& spans) {
  std::vector<std::string> names;
  for (const TraceSpan& span : spans) names.emplace_back(span.name);
  return names;
}

// A step with so many phases, each with a time of its own.
TracedStep Step(PhaseLog* phases, size_t num_phases) {
  TracedStep step;
  step.begin = Clock::Monotonic().Now();
  phases->Begin(true);
  absl::Duration at = step.begin;
  for (size_t index = 0; index < num_phases; ++index) {
    const absl::Duration end = at + absl::Microseconds(1);
    phases->Add({StepPhase::kGate, LayerId(static_cast<int32_t>(index)), 0, at, end});
    at = end;
  }
  step.end = at;
  step.phases = phases;
  return step;
}

TEST(RequestTraceTest, LetsTheCallerDecideAndElseTheRatio) {
  SpanList list;
  const auto begins = [&](absl::string_view traceparent, double ratio) {
    return RequestTrace::Begin({&list, ratio}, traceparent, "generate") != nullptr;
  };
  EXPECT_TRUE(begins(kSampled, 0));
  EXPECT_FALSE(begins(kNotSampled, 1));
  EXPECT_TRUE(begins("", 1));
  EXPECT_FALSE(begins("", 0));
  EXPECT_TRUE(begins("malformed", 1)) << "as if there were none";
  EXPECT_EQ(RequestTrace::Begin({}, kSampled, "generate"), nullptr) << "off";
  EXPECT_THAT(list.spans(), IsEmpty());
}

TEST(RequestTraceTest, TracesNoMoreOfTheCallersThanTheBudgetHas) {
  SpanList list;
  FakeClock clock;
  TraceBudget budget(2, clock);
  const TraceRule rule = {&list, 1, &budget};
  const auto begins = [&](absl::string_view traceparent) {
    return RequestTrace::Begin(rule, traceparent, "generate") != nullptr;
  };
  EXPECT_TRUE(begins(kSampled));
  EXPECT_FALSE(begins(kNotSampled));
  EXPECT_TRUE(begins("")) << "takes nothing from the callers'";
  EXPECT_TRUE(begins(kSampled));
  EXPECT_FALSE(begins(kSampled)) << "though the ratio would have it";
  EXPECT_EQ(budget.num_refused(), 1);
  EXPECT_TRUE(begins("")) << "and they take nothing from others";
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(begins(kSampled));
}

TEST(RequestTraceTest, GivesLogLinesTheCallersTraceEvenWhereNothingIsSampled) {
  EXPECT_EQ(TraceIdOf(nullptr, kNotSampled), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(TraceIdOf(nullptr, "malformed"), "");
  SpanList list;
  const auto trace = RequestTrace::Begin({&list, 1}, "", "generate");
  EXPECT_EQ(TraceIdOf(trace.get(), ""), FormatTraceId(trace->trace_id()));
}

TEST(RequestTraceTest, TellsStepsWithoutPhasesBeyondItsBoundAndCountsTheRest) {
  SpanList list;
  const auto trace = RequestTrace::Begin({&list, 1}, "", "generate");
  trace->OnAdmitted();
  PhaseLog phases;
  constexpr int64_t kOfOneStep = 100;
  constexpr int64_t kWhole = RequestTrace::kMaxSpans / (kOfOneStep + 1);
  constexpr int64_t kLeftOut = 7;
  for (int64_t step = 0; step < kWhole + RequestTrace::kMaxBareSteps + kLeftOut; ++step) {
    EXPECT_EQ(trace->wants_phases(), step <= kWhole) << step;
    trace->OnStep(Step(&phases, kOfOneStep));
  }
  trace->End({}, absl::OkStatus());
  EXPECT_THAT(list.Named("gate"), SizeIs(kWhole * kOfOneStep));
  EXPECT_THAT(list.Named("step"), SizeIs(kWhole + RequestTrace::kMaxBareSteps));
  const TraceSpan root = list.Named("generate").at(0);
  EXPECT_EQ(NumberOf(root, "moebius.steps_without_phases"), RequestTrace::kMaxBareSteps);
  EXPECT_EQ(NumberOf(root, "moebius.steps_left_out"), kLeftOut);
}

TEST(RequestTraceTest, TellsAStepWithMorePhasesThanItsLogTakesWithoutThem) {
  SpanList list;
  const auto trace = RequestTrace::Begin({&list, 1}, "", "generate");
  PhaseLog phases;
  trace->OnStep(Step(&phases, PhaseLog::kMaxIntervals + 1));
  EXPECT_TRUE(phases.is_cut());
  EXPECT_THAT(NamesOf(list.spans()), ElementsAre("step"));
}

// What a lead makes of requests that are traced.
class LeadTraceTest : public testing::Test {
 protected:
  LeadTraceTest() {
    options_.vocab_size = 97;
    options_.max_positions = 64;
    options_.schedule = {16, 8};
    lead_ = std::make_unique<Lead>(options_, &rows_, &executor_, nullptr, Clock::Monotonic());
    lead_->SetTracing({&list_, 0});
    lead_->SetLog(&log_);
  }

  std::shared_ptr<GenerateStream> Submit(std::vector<int64_t> ids, const char* traceparent) {
    GenerateRequest request;
    request.token_ids = std::move(ids);
    request.max_tokens = 3;
    request.traceparent = traceparent;
    return *lead_->Submit(request);
  }
  void RunAll() {
    while (lead_->RunOneStep()) {
    }
  }

  LeadOptions options_;
  FakeRows rows_;
  Executor executor_{1};
  SpanList list_;
  RequestLog log_;
  std::unique_ptr<Lead> lead_;
};

TEST_F(LeadTraceTest, MakesSpansThatNestAndCoverEveryPhase) {
  const auto traced = Submit({1, 2, 3}, kSampled);
  const auto other = Submit({4, 5}, "");
  RunAll();
  const TraceSpan root = list_.Named("generate").at(0);
  EXPECT_EQ(FormatTraceId(root.trace), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(root.parent, TraceSpanId(0x00f067aa0ba902b7)) << "the caller's span";
  EXPECT_EQ(root.kind, TraceSpan::Kind::kServer);
  EXPECT_TRUE(root.status.ok());
  EXPECT_EQ(NumberOf(root, "moebius.prompt_tokens"), 3);
  EXPECT_EQ(NumberOf(root, "moebius.completion_tokens"), 3);
  EXPECT_EQ(TextOf(root, "moebius.finish_reason"), "length");
  EXPECT_EQ(TextOf(root, "moebius.status"), "OK");
  EXPECT_EQ(TextOf(root, "moebius.request_id"), traced->Next()->request_id);

  EXPECT_THAT(NamesOf(list_.ChildrenOf(root)), ElementsAre("step", "step", "step", "admission"));
  for (const TraceSpan& step : list_.Named("step")) {
    const std::vector<TraceSpan> phases = list_.ChildrenOf(step);
    ASSERT_EQ(phases.size(), std::size(kPhases) * FakeRows::kLayers);
    absl::Time before = step.begin;
    for (size_t index = 0; index < phases.size(); ++index) {
      EXPECT_EQ(phases[index].name, kPhases[index % std::size(kPhases)]);
      EXPECT_EQ(NumberOf(phases[index], "moebius.layer"),
                static_cast<int64_t>(index / std::size(kPhases)));
      EXPECT_GE(phases[index].begin, before);
      EXPECT_GE(phases[index].end, phases[index].begin);
      before = phases[index].end;
    }
    EXPECT_LE(before, step.end);
    EXPECT_LE(step.end, root.end);
    EXPECT_GE(step.begin, list_.Named("admission").at(0).end);
  }
  EXPECT_EQ(list_.Named("admission").at(0).begin, root.begin);
  // The first step had the other request's rows too.
  EXPECT_EQ(NumberOf(list_.Named("step")[0], "moebius.rows"), 5);
  EXPECT_EQ(NumberOf(list_.Named("step")[0], "moebius.own_rows"), 3);
  EXPECT_THAT(list_.Named("generate"), SizeIs(1)) << "nothing of the other request";
}

TEST_F(LeadTraceTest, AsksForPhasesOnlyWhereARequestIsTraced) {
  const auto other = Submit({4, 5}, kNotSampled);
  RunAll();
  for (const StepRequest& step : rows_.steps) EXPECT_FALSE(step.wants_phases);
  EXPECT_THAT(list_.spans(), IsEmpty());
}

TEST_F(LeadTraceTest, TellsEveryTryOfAStep) {
  int failures = 1;
  rows_.before_step = [&](const StepRequest&) {
    return failures-- > 0 ? absl::AbortedError("a rank did not answer") : absl::OkStatus();
  };
  const auto traced = Submit({1, 2, 3}, kSampled);
  RunAll();
  const std::vector<TraceSpan> steps = list_.Named("step");
  ASSERT_GE(steps.size(), 2u);
  EXPECT_EQ(steps[0].status, absl::AbortedError("a rank did not answer"));
  EXPECT_THAT(list_.ChildrenOf(steps[0]), IsEmpty()) << "no phases of a step before";
  EXPECT_EQ(NumberOf(steps[1], "moebius.attempt"), 1);
  EXPECT_EQ(NumberOf(steps[1], "moebius.step"), NumberOf(steps[0], "moebius.step"));
  EXPECT_TRUE(steps[1].status.ok());
}

TEST_F(LeadTraceTest, EndsTheRootOfARequestThatFailsOrIsCancelledOrNeverRan) {
  rows_.poison_token = 50;
  const auto failed = Submit({50}, kSampled);
  RunAll();
  TraceSpan root = list_.Named("generate").at(0);
  EXPECT_FALSE(root.status.ok());
  EXPECT_EQ(TextOf(root, "moebius.finish_reason"), "none");
  EXPECT_NE(TextOf(root, "moebius.status"), "OK");

  const auto cancelled = Submit({1, 2}, kSampled);
  cancelled->Cancel();
  RunAll();
  root = list_.Named("generate").at(1);
  EXPECT_EQ(TextOf(root, "moebius.finish_reason"), "abort");
  EXPECT_EQ(list_.Named("admission").at(1).end, root.end) << "it waited until its end";

  const auto late = Submit({1, 2}, kSampled);
  lead_->Shutdown();
  lead_.reset();
  EXPECT_EQ(TextOf(list_.Named("generate").at(2), "moebius.status"), "UNAVAILABLE");
}

TEST_F(LeadTraceTest, PutsTheTraceIntoTheRequestLog) {
  const auto traced = Submit({1, 2, 3}, kSampled);
  const auto not_sampled = Submit({1, 2, 3}, kNotSampled);
  const auto other = Submit({4, 5}, "");
  RunAll();
  EXPECT_EQ(log_.Explain(traced->Next()->request_id)->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(log_.Explain(not_sampled->Next()->request_id)->trace_id,
            "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(log_.Explain(other->Next()->request_id)->trace_id, "");
}

}  // namespace
}  // namespace moebius
