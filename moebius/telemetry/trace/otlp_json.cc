// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/otlp_json.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/utf8.h"

namespace moebius {
namespace {

constexpr absl::string_view kScope = "moebius";
constexpr int kStatusError = 2;  // STATUS_CODE_ERROR

void AppendText(absl::string_view text, std::string* out) {
  out->push_back('"');
  const size_t end = out->size() + kMaxTraceTextBytes;
  while (!text.empty() && out->size() < end) {
    const size_t length = Utf8CharacterBytes(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out->append("\\ufffd");
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(text[0]);
    } else if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else {
      out->append(text.data(), length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  out->push_back('"');
}

void AppendValue(const TraceAttribute& attribute, std::string* out) {
  if (const auto* number = std::get_if<int64_t>(&attribute.value)) {
    absl::StrAppend(out, "{\"intValue\":\"", *number, "\"}");
  } else if (const auto* truth = std::get_if<bool>(&attribute.value)) {
    absl::StrAppend(out, "{\"boolValue\":", *truth ? "true" : "false", "}");
  } else {
    out->append("{\"stringValue\":");
    AppendText(std::get<std::string>(attribute.value), out);
    out->push_back('}');
  }
}

void AppendAttributes(absl::Span<const TraceAttribute> attributes, std::string* out) {
  out->append("\"attributes\":[");
  for (size_t index = 0; index < attributes.size(); ++index) {
    out->append(index == 0 ? "{\"key\":" : ",{\"key\":");
    AppendText(attributes[index].name, out);
    out->append(",\"value\":");
    AppendValue(attributes[index], out);
    out->push_back('}');
  }
  out->push_back(']');
}

void AppendSpan(const TraceSpan& span, std::string* out) {
  absl::StrAppend(out, "{\"traceId\":\"", FormatTraceId(span.trace), "\",\"spanId\":\"",
                  FormatTraceSpanId(span.id), "\",");
  if (span.parent != TraceSpanId()) {
    absl::StrAppend(out, "\"parentSpanId\":\"", FormatTraceSpanId(span.parent), "\",");
  }
  out->append("\"name\":");
  AppendText(span.name, out);
  absl::StrAppend(out, ",\"kind\":", static_cast<int>(span.kind), ",\"startTimeUnixNano\":\"",
                  absl::ToUnixNanos(span.begin), "\",\"endTimeUnixNano\":\"",
                  absl::ToUnixNanos(span.end), "\",");
  AppendAttributes(span.attributes, out);
  out->append(",\"status\":{");
  if (!span.status.ok()) {
    absl::StrAppend(out, "\"code\":", kStatusError, ",\"message\":");
    AppendText(span.status.ToString(absl::StatusToStringMode::kWithNoExtraData), out);
  }
  out->append("}}");
}

}  // namespace

std::string FormatOtlpJson(const TraceResource& resource, absl::Span<const TraceSpan> spans) {
  const TraceAttribute facts[] = {{"service.name", resource.name},
                                  {"service.instance.id", resource.instance},
                                  {"service.version", resource.version}};
  std::string out = "{\"resourceSpans\":[{\"resource\":{";
  AppendAttributes(facts, &out);
  out.append("},\"scopeSpans\":[{\"scope\":{\"name\":");
  AppendText(kScope, &out);
  out.append("},\"spans\":[");
  for (size_t index = 0; index < spans.size(); ++index) {
    if (index != 0) out.push_back(',');
    AppendSpan(spans[index], &out);
  }
  out.append("]}]}]}");
  return out;
}

}  // namespace moebius
