// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "moebius/base/mutex.h"
#include "moebius/telemetry/trace/trace_span.h"

namespace moebius {

/// A sink that keeps all spans. Thread-safe.
class SpanList final : public TraceSink {
 public:
  void Take(std::vector<TraceSpan> spans) override {
    MutexLock lock(mutex_);
    for (TraceSpan& span : spans) spans_.push_back(std::move(span));
  }

  std::vector<TraceSpan> spans() const {
    MutexLock lock(mutex_);
    return spans_;
  }
  std::vector<TraceSpan> Named(absl::string_view name) const {
    std::vector<TraceSpan> named;
    for (const TraceSpan& span : spans()) {
      if (span.name == name) named.push_back(span);
    }
    return named;
  }
  std::vector<TraceSpan> ChildrenOf(const TraceSpan& parent) const {
    std::vector<TraceSpan> children;
    for (const TraceSpan& span : spans()) {
      if (span.trace == parent.trace && span.parent == parent.id) children.push_back(span);
    }
    return children;
  }

 private:
  mutable Mutex mutex_;
  std::vector<TraceSpan> spans_ MOEBIUS_GUARDED_BY(mutex_);
};

/// An attribute that the span has.
inline int64_t NumberOf(const TraceSpan& span, absl::string_view name) {
  for (const TraceAttribute& attribute : span.attributes) {
    if (attribute.name == name) return std::get<int64_t>(attribute.value);
  }
  return -1;
}
inline std::string TextOf(const TraceSpan& span, absl::string_view name) {
  for (const TraceAttribute& attribute : span.attributes) {
    if (attribute.name == name) return std::get<std::string>(attribute.value);
  }
  return "none";
}

}  // namespace moebius
