// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/freed_memory.h"

#include <malloc.h>

#include <cstdlib>

namespace moebius {

void KeepFreedMemory() {
  if (std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
      std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) {
    return;
  }
  // Either one ends glibc's own adjustment of the other.
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(kKeptFreedBytes));
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kReturnedBlockBytes));
}

}  // namespace moebius
