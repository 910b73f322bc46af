// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_options.h"

#include <algorithm>

#include "moebius/transport/lane.h"

namespace moebius {
namespace {

// Of all descriptors: one quarter.
constexpr uint64_t kShare = 4;

}  // namespace

void BoundByDescriptors(uint64_t max_descriptors, ShmOptions* options) {
  const uint64_t affordable =
      std::max<uint64_t>(2 * kNumLanes, max_descriptors / kShare / kDescriptorsPerShmConnection);
  options->max_connections =
      static_cast<uint32_t>(std::min<uint64_t>(options->max_connections, affordable));
  options->max_connections_per_process =
      std::min(options->max_connections_per_process, options->max_connections / 4 * 3);
}

}  // namespace moebius
