// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "moebius/attention/attention_layout.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/span.h"

namespace moebius {

/// Calls visit(PositionRange) for each range of the shard that a rank of N has of T new tokens, as
/// the cost model counts it: what a prompt of one unit has (session_spans.h). Without any rule of
/// divisibility; empty ranges are left out; ascending.
///   zigzag      [b_r, b_(r+1)) and [b_(2N-1-r), b_(2N-r)) with b_j = ⌊j · T / 2N⌋
///   contiguous  [⌊r · T / N⌋, ⌊(r + 1) · T / N⌋)
///   striped     of blocks of `key_block` tokens numbers r and 2N - 1 - r of each 2N
template <typename Visit>
void ForEachShardRange(AttentionLayout layout, int64_t num_tokens, Shard shard, int64_t key_block,
                       Visit visit) {
  const int64_t r = shard.rank;
  const int64_t num_ranks = shard.num_ranks;
  const int64_t period = 2 * num_ranks;
  const auto visit_range = [&](int64_t begin, int64_t end) {
    if (begin < end) visit(PositionRange{begin, end});
  };
  switch (layout) {
    case AttentionLayout::kZigzag:
      visit_range(r * num_tokens / period, (r + 1) * num_tokens / period);
      visit_range((period - 1 - r) * num_tokens / period, (period - r) * num_tokens / period);
      break;
    case AttentionLayout::kContiguous:
      visit_range(r * num_tokens / num_ranks, (r + 1) * num_tokens / num_ranks);
      break;
    case AttentionLayout::kStriped:
      for (int64_t first = 0; first * key_block < num_tokens; first += period) {
        for (const int64_t block : {first + r, first + period - 1 - r}) {
          visit_range(block * key_block, std::min((block + 1) * key_block, num_tokens));
        }
      }
      break;
  }
}

}  // namespace moebius
