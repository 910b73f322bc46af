// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/otlp_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

TraceSpan Span(uint64_t id, uint64_t parent, absl::string_view name) {
  TraceSpan span;
  span.trace = {0x4bf92f3577b34da6, 0xa3ce929d0e0e4736};
  span.id = TraceSpanId(id);
  span.parent = TraceSpanId(parent);
  span.name = name;
  span.begin = absl::FromUnixNanos(1700000000000000001);
  span.end = absl::FromUnixNanos(1700000000000000900);
  return span;
}

// Field names and forms: opentelemetry/proto/trace/v1/trace.proto and the JSON encoding of OTLP.
TEST(OtlpJsonTest, WritesTheFieldsOfTheEncoding) {
  TraceSpan root = Span(0xf067aa0ba902b7, 0, "generate");
  root.kind = TraceSpan::Kind::kServer;
  root.attributes = {{"moebius.request_id", std::string("a \"b\"\n")},
                     {"moebius.prompt_tokens", int64_t{9007199254740993}},
                     {"moebius.exact", true}};
  root.status = absl::UnavailableError("rank 1 is gone");
  const TraceSpan child = Span(2, 0xf067aa0ba902b7, "admission");
  EXPECT_EQ(FormatOtlpJson({"moebius-router", "router-0", "1.2.3"}, {root, child}),
            R"({"resourceSpans":[{"resource":{"attributes":[)"
            R"({"key":"service.name","value":{"stringValue":"moebius-router"}},)"
            R"({"key":"service.instance.id","value":{"stringValue":"router-0"}},)"
            R"({"key":"service.version","value":{"stringValue":"1.2.3"}}]},)"
            R"("scopeSpans":[{"scope":{"name":"moebius"},"spans":[)"
            R"({"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7",)"
            R"("name":"generate","kind":2,)"
            R"("startTimeUnixNano":"1700000000000000001","endTimeUnixNano":"1700000000000000900",)"
            R"("attributes":[{"key":"moebius.request_id","value":{"stringValue":"a \"b\"\u000a"}},)"
            R"({"key":"moebius.prompt_tokens","value":{"intValue":"9007199254740993"}},)"
            R"({"key":"moebius.exact","value":{"boolValue":true}}],)"
            R"("status":{"code":2,"message":"UNAVAILABLE: rank 1 is gone"}},)"
            R"({"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"0000000000000002",)"
            R"("parentSpanId":"00f067aa0ba902b7","name":"admission","kind":1,)"
            R"("startTimeUnixNano":"1700000000000000001","endTimeUnixNano":"1700000000000000900",)"
            R"("attributes":[],"status":{}}]}]}]})");
}

TEST(OtlpJsonTest, KeepsAnybodysBytesInsideTheirText) {
  TraceSpan span = Span(1, 0, "generate");
  span.attributes = {{"moebius.request_id", std::string("\xff\xc3\xa9\\\x01", 5)}};
  EXPECT_THAT(FormatOtlpJson({}, {span}),
              HasSubstr("{\"stringValue\":\"\\ufffd\xc3\xa9\\\\\\u0001\"}"));
}

TEST(OtlpJsonTest, CutsATextThatIsTooLong) {
  TraceSpan span = Span(1, 0, "generate");
  span.attributes = {{"moebius.request_id", std::string(kMaxTraceTextBytes + 1, 'x')}};
  EXPECT_THAT(FormatOtlpJson({}, {span}),
              HasSubstr("\"" + std::string(kMaxTraceTextBytes, 'x') + "\""));
}

TEST(OtlpJsonTest, WritesNoSpansAsAnEmptyList) {
  EXPECT_THAT(FormatOtlpJson({}, {}), HasSubstr("\"spans\":[]"));
}

}  // namespace
}  // namespace moebius
