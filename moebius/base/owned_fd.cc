// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/owned_fd.h"

#include <unistd.h>

namespace moebius {

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace moebius
