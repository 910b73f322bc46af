// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "moebius/base/strong_id.h"

// W3C Trace Context (https://www.w3.org/TR/trace-context/): how a caller says which trace its call
// belongs to. All functions are pure.

namespace moebius {

/// 16 bytes, not all zero; all zero: none.
struct TraceId {
  uint64_t high = 0;
  uint64_t low = 0;

  bool is_valid() const { return high != 0 || low != 0; }
  friend bool operator==(const TraceId&, const TraceId&) = default;
};

/// One span of a trace; 0: none.
using TraceSpanId = StrongId<struct TraceSpanIdTag, uint64_t>;

/// What a caller tells, or what a call of ours would tell the next one.
struct TraceContext {
  TraceId trace;
  TraceSpanId parent;    // the span that calls; 0: none
  bool sampled = false;  // the caller records its spans

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

/// Reads the value of a `traceparent`: "00-", 32, "-", 16, "-", 2 lowercase hexadecimal digits. Of
/// later versions than 00 the same 55 characters count, and what follows them behind a dash is left
/// alone. Nothing for any other text, for version ff and for ids that are all zero: as if there
/// were none.
std::optional<TraceContext> ParseTraceparent(absl::string_view text);

/// As version 00. `context` has a trace and a parent.
std::string FormatTraceparent(const TraceContext& context);

/// 32 and 16 lowercase hexadecimal digits.
std::string FormatTraceId(const TraceId& trace);
std::string FormatTraceSpanId(TraceSpanId span);

/// Whether a trace belongs to the sampled share of all traces: decided by the last 56 bits of its
/// id, which are random, so that all who use the same ratio decide alike. `ratio` in [0, 1].
bool IsInSample(const TraceId& trace, double ratio);

}  // namespace moebius
