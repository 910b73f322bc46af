// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

/// Calls of operator new, of every form and on every thread, since the program began. A program
/// that links this has an allocator that counts: not for trees whose sanitizers bring their own.
int64_t NumAllocations();

}  // namespace moebius
