// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "moebius/telemetry/trace/trace_span.h"

namespace moebius {

/// Whose spans they are: the attributes service.name, service.instance.id and service.version.
struct TraceResource {
  std::string name;      // "moebius-router"
  std::string instance;  // "router-0"
  std::string version;   // "0.1.0"
};

/// An ExportTraceServiceRequest in the JSON encoding of OTLP 1 (opentelemetry.io/docs/specs/otlp,
/// "JSON Protobuf Encoding"): ids in hexadecimal, 64-bit integers as decimal texts, enumerations as
/// numbers, one line without spaces. Texts may be anybody's bytes: what is not UTF-8 becomes
/// U+FFFD, and a text is cut at kMaxTraceTextBytes. Pure.
std::string FormatOtlpJson(const TraceResource& resource, absl::Span<const TraceSpan> spans);

inline constexpr size_t kMaxTraceTextBytes = 1024;

}  // namespace moebius
