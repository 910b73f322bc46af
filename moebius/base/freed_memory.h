// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

/// Most bytes that an arena of glibc's allocator keeps at its end after KeepFreedMemory; it has at
/// most eight arenas for each CPU.
inline constexpr int64_t kKeptFreedBytes = int64_t{16} << 20;
/// Blocks from this size on are given back when they are freed.
inline constexpr int64_t kReturnedBlockBytes = int64_t{4} << 20;

/// Lets the allocator keep what a message's memory leaves behind instead of giving it back to the
/// system and taking it again for the next one: with the defaults each message of a megabyte costs
/// some 256 page faults at its reader, half of a stream's bandwidth. Once, before threads
/// allocate. MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ in the environment are left alone.
void KeepFreedMemory();

}  // namespace moebius
