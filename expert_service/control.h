// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/placement/placement.h"
#include "moebius/service/participant_description.h"

namespace moebius {

/// Who an expert service is and what it holds.
struct ExpertDescription : ParticipantDescription {
  std::vector<HeldExpert> held;
};

/// Rows that a service computed since it began. Resent rows count wherever they were computed.
struct ComputedLoad {
  std::vector<int32_t> layer_ids;  // [L], ascending
  int32_t num_experts = 0;         // E
  std::vector<int64_t> computed;   // [L, E]
};

/// What operators may ask of an expert service. Thread-safe.
class ExpertControl {
 public:
  virtual ~ExpertControl() = default;
  virtual ExpertDescription Describe() const = 0;
  virtual ComputedLoad Load() const = 0;
  /// Takes no more rows, and waits until those under way are answered. DEADLINE_EXCEEDED when they
  /// were not within `timeout`: it goes on draining.
  virtual absl::Status DrainWithin(absl::Duration timeout) = 0;
};

}  // namespace moebius
