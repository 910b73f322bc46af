// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/trace_context.h"

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

// version "-" trace-id "-" parent-id "-" flags
constexpr size_t kTraceAt = 3, kParentAt = 36, kFlagsAt = 53, kLength = 55;
constexpr uint64_t kSampledFlag = 1;
constexpr uint64_t kInvalidVersion = 0xff;
// Level 2 of the recommendation makes the last 56 bits random; a double holds 53 of them exactly.
constexpr int kRandomBits = 56, kUsedBits = 53;

// Lowercase digits alone, as the recommendation wants them.
std::optional<uint64_t> ParseHex(absl::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    const bool is_letter = c >= 'a' && c <= 'f';
    if (!is_letter && (c < '0' || c > '9')) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(is_letter ? c - 'a' + 10 : c - '0');
  }
  return value;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view text) {
  if (text.size() < kLength) return std::nullopt;
  if (text[kTraceAt - 1] != '-' || text[kParentAt - 1] != '-' || text[kFlagsAt - 1] != '-') {
    return std::nullopt;
  }
  const auto version = ParseHex(text.substr(0, 2));
  const auto high = ParseHex(text.substr(kTraceAt, 16));
  const auto low = ParseHex(text.substr(kTraceAt + 16, 16));
  const auto parent = ParseHex(text.substr(kParentAt, 16));
  const auto flags = ParseHex(text.substr(kFlagsAt, 2));
  if (!version || !high || !low || !parent || !flags) return std::nullopt;
  if (*version == kInvalidVersion || *parent == 0) return std::nullopt;
  // A later version may say more, behind another dash.
  if (text.size() > kLength && (*version == 0 || text[kLength] != '-')) return std::nullopt;
  TraceContext context;
  context.trace = {*high, *low};
  context.parent = TraceSpanId(*parent);
  context.sampled = (*flags & kSampledFlag) != 0;
  if (!context.trace.is_valid()) return std::nullopt;
  return context;
}

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", FormatTraceId(context.trace), "-", FormatTraceSpanId(context.parent),
                      context.sampled ? "-01" : "-00");
}

std::string FormatTraceId(const TraceId& trace) {
  return absl::StrCat(absl::Hex(trace.high, absl::kZeroPad16),
                      absl::Hex(trace.low, absl::kZeroPad16));
}

std::string FormatTraceSpanId(TraceSpanId span) {
  return absl::StrCat(absl::Hex(span.value(), absl::kZeroPad16));
}

bool IsInSample(const TraceId& trace, double ratio) {
  const uint64_t random = trace.low & ((uint64_t{1} << kRandomBits) - 1);
  const uint64_t used = random >> (kRandomBits - kUsedBits);
  return static_cast<double>(used) < ratio * static_cast<double>(uint64_t{1} << kUsedBits);
}

}  // namespace moebius
