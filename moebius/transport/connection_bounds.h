// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "moebius/transport/lane.h"

namespace moebius {

/// How many connections a listener keeps: in all, and of one source (an address, a process).
struct ConnectionBounds {
  uint32_t max_connections = 0;
  uint32_t max_per_source = 0;
};

/// What of `bounds` a process with so many descriptors can afford: its links' connections have a
/// quarter of them, and no source more than three quarters of the connections. The lanes of two
/// peers always have room. Raises nothing. Pure.
inline ConnectionBounds BoundedByDescriptors(uint64_t max_descriptors,
                                             uint64_t descriptors_per_connection,
                                             ConnectionBounds bounds) {
  constexpr uint64_t kShare = 4;
  const uint64_t affordable =
      std::max<uint64_t>(2 * kNumLanes, max_descriptors / kShare / descriptors_per_connection);
  bounds.max_connections =
      static_cast<uint32_t>(std::min<uint64_t>(bounds.max_connections, affordable));
  bounds.max_per_source = std::min(bounds.max_per_source, bounds.max_connections / 4 * 3);
  return bounds;
}

}  // namespace moebius
