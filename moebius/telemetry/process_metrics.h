// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

#include "moebius/telemetry/registry.h"

namespace moebius {

/// Writes process_*: CPU, memory, descriptors, threads, start. What /proc does not tell is left
/// out. Reads files: tens of microseconds.
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
