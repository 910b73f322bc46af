// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace moebius::internal {

void CheckFailed(const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace moebius::internal
