// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/placement/placement.h"

namespace moebius {

/// What one service has to load and may unload to come from one placement to the next. The old
/// placement serves until all loads are done, so a service holds both for a while.
struct ServiceChange {
  std::vector<HeldExpert> loads;    // ascending
  std::vector<HeldExpert> unloads;  // ascending
  int64_t held_before = 0;          // sets of weights
  int64_t held_after = 0;
  int64_t held_at_most() const { return held_before + static_cast<int64_t>(loads.size()); }
};

/// By service; `before` and `after` [services], each ascending without repetition. Pure.
std::vector<ServiceChange> DiffHeld(absl::Span<const std::vector<HeldExpert>> before,
                                    absl::Span<const std::vector<HeldExpert>> after);

}  // namespace moebius
