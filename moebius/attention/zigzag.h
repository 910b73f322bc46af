// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "moebius/attention/shard.h"
#include "moebius/attention/span.h"

namespace moebius {

/// b_j = ⌊j · T / 2N⌋: where the classic zigzag cuts T tokens, without any rule of divisibility.
inline int64_t ZigzagBound(int64_t j, int64_t num_tokens, int32_t num_ranks) {
  return j * num_tokens / (2 * int64_t{num_ranks});
}

/// The zigzag shards of T new tokens: rank r has [b_r, b_(r+1)) and [b_(2N-1-r), b_(2N-r)). Chunks
/// may be empty. What per-degree sums are predicted for, and where a prompt's last unit is cut
/// (session_spans.h); the canonical sum's owners follow the span rule.
inline std::array<PositionRange, 2> ZigzagRangesOf(int64_t num_tokens, Shard shard) {
  const int64_t chunks = 2 * int64_t{shard.num_ranks};
  const auto bound = [&](int64_t j) { return ZigzagBound(j, num_tokens, shard.num_ranks); };
  const int64_t r = shard.rank;
  return {PositionRange{bound(r), bound(r + 1)},
          PositionRange{bound(chunks - 1 - r), bound(chunks - r)}};
}

}  // namespace moebius
