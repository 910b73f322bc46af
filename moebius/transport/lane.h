// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace moebius {

/// The connections between two processes. Lanes share nothing, so a full bulk lane never delays a
/// beat or a decode row. The values are part of the wire format; never renumber.
enum class Lane : uint8_t { kControl = 0, kDecode = 1, kBulk = 2 };

inline constexpr size_t kNumLanes = 3;

inline size_t LaneIndex(Lane lane) { return static_cast<size_t>(lane); }

inline absl::string_view LaneName(Lane lane) {
  constexpr absl::string_view kNames[kNumLanes] = {"control", "decode", "bulk"};
  return kNames[LaneIndex(lane)];
}

}  // namespace moebius
