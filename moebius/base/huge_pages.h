// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moebius {

/// Linux's transparent huge pages on x86: what an aligned range of memory may become.
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

/// Bytes of memory for which huge pages were asked (madvise), and that the kernel really gave.
struct HugePages {
  int64_t asked_bytes = 0;
  int64_t got_bytes = 0;

  void Add(const HugePages& other) {
    asked_bytes += other.asked_bytes;
    got_bytes += other.got_bytes;
  }
};

/// The host's word on huge pages: "always", "madvise" (where they are asked for), "never"; empty
/// where the kernel has none. `root` is "" on a machine, a folder in tests.
std::string HostHugePagePolicy(const std::string& root = "");

/// AnonHugePages of the mapping of this process that begins at `address`, from /proc/self/smaps; 0
/// where no mapping begins there. Walks all mappings: for once after loading, not for a loop.
int64_t HugePageBytesAt(const void* address, const std::string& root = "");

/// "huge pages: 1048576 bytes asked, 1048576 got", and why where none were got: the host says
/// never, or has no free ones. `policy` is HostHugePagePolicy's. Pure.
std::string DescribeHugePages(const HugePages& pages, const std::string& policy);

}  // namespace moebius
