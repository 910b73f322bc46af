// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/attention/span.h"

// How far the keys of one session travel when rows see a window of them, or the whole prompt: what
// the canonical sum's methods send, counted from integers. Pure.

namespace moebius {

/// N ranks in groups of consecutive ones that compute their rows together (Ulysses, 2-D); groups of
/// one rank are the ring and all-gather.
struct RankGroups {
  int32_t num_ranks = 1;
  int32_t group_size = 1;  // divides num_ranks
};

/// Of the rows at positions [first_row, end), each computed by the group of its span's owner.
struct KeyReach {
  /// Σ over spans of its positions · the groups of which some row sees one of its keys.
  int64_t seen_positions = 0;
  /// The same, counting the span's owner's group alone: a rank of it has the span.
  int64_t own_positions = 0;
  /// Pairs (row, span) where the row sees a key of the span and another rank owns the span: the
  /// states that come back when queries go to the keys, for each head.
  int64_t foreign_states = 0;
  /// Pairs (row, rank) where the rank is another one that owns a span of which the row sees a key:
  /// the rows of queries that are sent.
  int64_t foreign_queries = 0;
};
/// Under PromptMask::kWhole the rows are [0, end), a prompt, and there is no window.
KeyReach ReachOfKeys(PositionRange rows, const SpanGeometry& geometry, KeyWindow window,
                     RankGroups groups);

}  // namespace moebius
