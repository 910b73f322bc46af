// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/telemetry/trace/trace_context.h"

namespace moebius {

/// A fact of a span: {"moebius.layer", 3}. Names are constants.
struct TraceAttribute {
  absl::string_view name;
  std::variant<int64_t, bool, std::string> value;
};

/// Something that took time, as a part of something that took longer.
struct TraceSpan {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  // OTLP's numbers

  TraceId trace;
  TraceSpanId id;
  TraceSpanId parent;      // 0: none
  absl::string_view name;  // a constant
  Kind kind = Kind::kInternal;
  absl::Time begin;
  absl::Time end;  // >= begin
  std::vector<TraceAttribute> attributes;
  absl::Status status;  // of what was done; OK is said as "unset"
};

/// Who takes spans that have ended. Thread-safe.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// All of them or, where there is no room, none. Never waits.
  virtual void Take(std::vector<TraceSpan> spans) = 0;
};

}  // namespace moebius
