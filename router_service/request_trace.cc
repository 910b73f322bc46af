// SPDX-License-Identifier: Apache-2.0
#include "router_service/request_trace.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

absl::Duration Now() { return Clock::Monotonic().Now(); }

std::string CodeName(const absl::Status& status) { return absl::StatusCodeToString(status.code()); }

}  // namespace

std::unique_ptr<RequestTrace> RequestTrace::Begin(const TraceRule& rule,
                                                  absl::string_view traceparent,
                                                  absl::string_view name) {
  if (rule.sink == nullptr) return nullptr;
  const std::optional<TraceContext> caller = ParseTraceparent(traceparent);
  if (caller.has_value() && !caller->sampled) return nullptr;
  // Not by the ratio either: it goes by the id, which a caller draws as he likes.
  if (caller.has_value() && rule.callers != nullptr && !rule.callers->TryTake()) return nullptr;
  Random random(SeedFromSystem());
  TraceContext context;
  if (caller.has_value()) {
    context = *caller;
  } else {
    context.trace = {random.Bits(), random.Bits() | 1};  // never all zero
    if (!IsInSample(context.trace, rule.sample_ratio)) return nullptr;
  }
  return std::unique_ptr<RequestTrace>(new RequestTrace(rule.sink, context, name, random));
}

RequestTrace::RequestTrace(TraceSink* sink, const TraceContext& context, absl::string_view name,
                           const Random& random)
    : sink_(sink),
      trace_(context.trace),
      caller_(context.parent),
      name_(name),
      random_(random),
      root_(DrawId()),
      begin_(Now()),
      wall_begin_(absl::Now()) {}

void RequestTrace::OnAdmitted() { admitted_at_ = Now(); }

void RequestTrace::OnStep(const TracedStep& step) {
  const absl::Span<const PhaseInterval> phases = step.phases->intervals();
  const int64_t size = 1 + static_cast<int64_t>(phases.size());
  const bool tells_phases =
      step.phases->is_on() && !step.phases->is_cut() && num_spans_ + size <= kMaxSpans;
  if (tells_phases) {
    num_spans_ += size;
  } else {
    num_spans_ = kMaxSpans;  // phases end here, not somewhere in between
    if (num_bare_steps_ == kMaxBareSteps) {
      ++num_left_out_;
      return;
    }
    ++num_bare_steps_;
  }
  std::vector<TraceSpan> spans;
  spans.reserve(tells_phases ? static_cast<size_t>(size) : 1);
  spans.push_back(MakeSpan("step", root_, step.begin, step.end));
  spans[0].attributes = {{"moebius.step", static_cast<int64_t>(step.step)},
                         {"moebius.attempt", static_cast<int64_t>(step.attempt)},
                         {"moebius.rows", step.num_rows},
                         {"moebius.own_rows", step.own_rows}};
  spans[0].status = step.status;
  if (tells_phases) {
    for (const PhaseInterval& phase : phases) {
      spans.push_back(MakeSpan(StepPhaseName(phase.phase), spans[0].id, phase.begin, phase.end));
      spans.back().attributes = {{"moebius.layer", int64_t{phase.layer.value()}}};
      if (phase.round > 0) {
        spans.back().attributes.push_back({"moebius.round", int64_t{phase.round}});
      }
    }
  }
  sink_->Take(std::move(spans));
}

void RequestTrace::End(std::vector<TraceAttribute> attributes, const absl::Status& status) {
  const absl::Duration now = Now();
  std::vector<TraceSpan> spans;
  spans.push_back(MakeSpan("admission", root_, begin_, admitted_at_.value_or(now)));
  if (!admitted_at_.has_value()) spans[0].status = status;
  spans.push_back(MakeSpan(name_, caller_, begin_, now));
  TraceSpan& root = spans[1];
  root.id = root_;
  root.kind = TraceSpan::Kind::kServer;
  root.attributes = std::move(attributes);
  root.attributes.push_back({"moebius.status", CodeName(status)});
  root.attributes.push_back({"moebius.steps_without_phases", num_bare_steps_});
  root.attributes.push_back({"moebius.steps_left_out", num_left_out_});
  root.status = status;
  sink_->Take(std::move(spans));
}

TraceSpan RequestTrace::MakeSpan(absl::string_view name, TraceSpanId parent, absl::Duration begin,
                                 absl::Duration end) {
  TraceSpan span;
  span.trace = trace_;
  span.id = DrawId();
  span.parent = parent;
  span.name = name;
  // By the monotonic clock alone: no step of the wall clock moves a child out of its parent.
  span.begin = wall_begin_ + (begin - begin_);
  span.end = wall_begin_ + (end - begin_);
  return span;
}

TraceSpanId RequestTrace::DrawId() { return TraceSpanId(std::max<uint64_t>(1, random_.Bits())); }

std::string TraceIdOf(const RequestTrace* trace, absl::string_view traceparent) {
  if (trace != nullptr) return FormatTraceId(trace->trace_id());
  const std::optional<TraceContext> caller = ParseTraceparent(traceparent);
  return caller.has_value() ? FormatTraceId(caller->trace) : "";
}

}  // namespace moebius
