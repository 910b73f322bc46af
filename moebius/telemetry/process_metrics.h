// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "moebius/telemetry/registry.h"

namespace moebius {

/// process_*: CPU, memory, descriptors, threads, start. Thread-safe.
class ProcessMetrics {
 public:
  /// `proc` is /proc, or a folder like it. Reads when the machine started: the kernel works that
  /// out from the wall clock, which moves, and a start that moves looks like another process.
  explicit ProcessMetrics(std::string proc);

  /// What `proc` does not tell is left out. Reads files: tens of microseconds.
  void Write(MetricWriter& writer) const;

 private:
  const std::string proc_;
  const double boot_time_;  // Unix seconds; 0 when unknown
};

/// Of this process.
void WriteProcessMetrics(MetricWriter& writer);

/// What a process is, in labels of series whose value is 1.
struct ProcessFacts {
  absl::string_view service;  // "router", "expert", "attention"
  absl::string_view version;
  absl::string_view config_hash;
  absl::string_view numeric_class;
  absl::string_view dtype;
  absl::string_view kernel;  // the tier, e.g. "avx512_bf16"
};
void WriteProcessFacts(const ProcessFacts& facts, MetricWriter& writer);

}  // namespace moebius
