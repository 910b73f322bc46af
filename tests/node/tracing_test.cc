// SPDX-License-Identifier: Apache-2.0
// Spans of a whole node: what a trace of the real pipeline holds, and that it changes no bit.
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/tensor/bf16.h"
#include "tests/node/expected_cases.h"
#include "tests/router_service/span_list.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

EmbeddedOptions Traced(TraceSink* sink) {
  EmbeddedOptions options;
  options.tracing = {sink, 1};
  options.num_expert_pipelines = 3;
  return options;
}

// Every span but roots has its parent among the spans, and lies within it.
void ExpectNested(const std::vector<TraceSpan>& spans) {
  std::map<uint64_t, const TraceSpan*> by_id;
  for (const TraceSpan& span : spans) by_id[span.id.value()] = &span;
  EXPECT_EQ(by_id.size(), spans.size());
  for (const TraceSpan& span : spans) {
    EXPECT_LE(span.begin, span.end);
    if (span.parent == TraceSpanId()) continue;
    const auto parent = by_id.find(span.parent.value());
    ASSERT_NE(parent, by_id.end()) << span.name;
    EXPECT_EQ(span.trace, parent->second->trace);
    EXPECT_GE(span.begin, parent->second->begin) << span.name;
    EXPECT_LE(span.end, parent->second->end) << span.name;
  }
}

TEST(NodeTracingTest, ATraceHoldsEveryPhaseOfEveryLayerAndTheRecordedBits) {
  SpanList list;
  const auto node = OpenDemo(Traced(&list));
  ExpectSameBits(*node, FindExpectedCase("short"));
  ASSERT_THAT(list.Named("generate"), SizeIs(1));
  ExpectNested(list.spans());
  const size_t num_layers = static_cast<size_t>(node->config().num_layers);
  const std::vector<TraceSpan> steps = list.Named("step");
  EXPECT_EQ(steps.size(), static_cast<size_t>(node->counters().steps));
  for (const TraceSpan& step : steps) EXPECT_THAT(list.ChildrenOf(step), SizeIs(5 * num_layers));
}

TEST(NodeTracingTest, AnotherRequestsStepsHaveNoSpansOfIt) {
  SpanList list;
  EmbeddedOptions options = Traced(&list);
  options.tracing.sample_ratio = 0;
  const auto node = OpenDemo(options);
  ExpectSameBits(*node, FindExpectedCase("short"));
  EXPECT_THAT(list.spans(), IsEmpty());
}

TEST(NodeTracingTest, ForwardHasTheSpansOfItsLayer) {
  SpanList list;
  const auto node = OpenDemo(Traced(&list));
  ForwardRequest request;
  request.layer = 1;
  request.num_rows = 2;
  request.hidden_size = node->config().hidden_size;
  const Bf16 value = ToBf16(0.5f);
  for (int64_t i = 0; i < 2 * request.hidden_size; ++i) {
    request.rows.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  ASSERT_TRUE(node->front().Forward(request, absl::Seconds(20)).ok());
  ExpectNested(list.spans());
  const TraceSpan root = list.Named("forward_rows").at(0);
  EXPECT_EQ(NumberOf(root, "moebius.layer"), 1);
  EXPECT_EQ(NumberOf(root, "moebius.rows"), 2);
  ASSERT_THAT(list.ChildrenOf(root), SizeIs(2)) << "admission and a step";
  std::vector<std::string> phases;
  for (const TraceSpan& span : list.ChildrenOf(list.Named("step").at(0))) {
    phases.emplace_back(span.name);
  }
  EXPECT_THAT(phases, ElementsAre("gate", "dispatch", "forward", "combine"));

  request.layer = 0;  // has no experts
  EXPECT_FALSE(node->front().Forward(request, absl::Seconds(20)).ok());
  EXPECT_EQ(TextOf(list.Named("forward_rows").at(1), "moebius.status"), "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace moebius
