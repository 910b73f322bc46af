// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace moebius {

/// Work so short that handing it to another thread costs about as much: the thread of the
/// transport that delivers such work does it, as long as nothing else is at work. While it does,
/// nothing else arrives on that thread, so the limit is small beside everything that waits for
/// messages: it is read in 100 µs at 20 GB/s, where a peer that is silent is suspect after 450 ms.
inline constexpr int64_t kMaxBriefBytes = 2 << 20;
/// More rows are worth a waking.
inline constexpr int64_t kMaxBriefRows = 8;

/// How many rows that read `row_bytes` (> 0) each, weights or KV, are brief together.
constexpr int64_t BriefRows(int64_t row_bytes) {
  return std::min(kMaxBriefRows, kMaxBriefBytes / row_bytes);
}

}  // namespace moebius
