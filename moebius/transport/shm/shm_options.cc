// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_options.h"

#include "moebius/transport/connection_bounds.h"

namespace moebius {

void BoundByDescriptors(uint64_t max_descriptors, ShmOptions* options) {
  const ConnectionBounds bounds =
      BoundedByDescriptors(max_descriptors, kDescriptorsPerShmConnection,
                           {options->max_connections, options->max_connections_per_process});
  options->max_connections = bounds.max_connections;
  options->max_connections_per_process = bounds.max_per_source;
}

}  // namespace moebius
