// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/key_reach.h"

#include <algorithm>
#include <vector>

#include "moebius/attention/shard.h"

namespace moebius {
namespace {

// How many rows of a range a rank owns.
int64_t NumOwnedRows(PositionRange rows, const SpanGeometry& geometry, Shard shard) {
  if (rows.empty()) return 0;
  const int64_t first = geometry.SpanOf(rows.begin);
  const int64_t last = geometry.SpanOf(rows.end - 1);
  const auto owns = [&](int64_t span) { return SpanOwner(span, 0, shard.num_ranks) == shard.rank; };
  if (first == last) return owns(first) ? rows.size() : 0;
  int64_t count = NumOwnedSpans({first + 1, last}, 0, shard) * geometry.span();
  if (owns(first)) count += geometry.SpanPositions(first).end - rows.begin;
  if (owns(last)) count += rows.end - geometry.SpanPositions(last).begin;
  return count;
}

// Whose ranks own some of the rows. Any 2N spans in a row are of all ranks.
std::vector<bool> GroupsOfRows(PositionRange rows, const SpanGeometry& geometry,
                               RankGroups groups) {
  std::vector<bool> is_there(static_cast<size_t>(groups.num_ranks / groups.group_size));
  const int64_t first = geometry.SpanOf(rows.begin);
  const int64_t end = std::min(geometry.NumSpans(rows.end), first + 2 * int64_t{groups.num_ranks});
  for (int64_t span = first; span < end; ++span) {
    is_there[static_cast<size_t>(SpanOwner(span, 0, groups.num_ranks) / groups.group_size)] = true;
  }
  return is_there;
}

// How many ranks besides `rank` own some of a session's spans.
int64_t NumOtherOwners(SpanRange spans, int32_t rank, int32_t num_ranks) {
  std::vector<bool> is_there(static_cast<size_t>(num_ranks));
  const int64_t end = std::min(spans.end, spans.begin + 2 * int64_t{num_ranks});
  for (int64_t span = spans.begin; span < end; ++span) {
    is_there[static_cast<size_t>(SpanOwner(span, 0, num_ranks))] = true;
  }
  is_there[static_cast<size_t>(rank)] = false;
  return std::count(is_there.begin(), is_there.end(), true);
}

int64_t NumForeignQueries(PositionRange rows, const SpanGeometry& geometry, KeyWindow window,
                          int32_t num_ranks) {
  const bool sees_whole = geometry.mask() == PromptMask::kWhole;
  int64_t count = 0;
  // Runs of rows of one span that see from the same span on.
  for (int64_t begin = rows.begin; begin < rows.end;) {
    const int64_t own = geometry.SpanOf(begin);
    const int64_t first = geometry.FirstSpan(begin, window);
    int64_t end = std::min(rows.end, geometry.SpanPositions(own).end);
    if (window.is_bounded()) {
      end = std::min(end, geometry.SpanPositions(first).end + window.size - 1);
    }
    const int64_t asked_end = sees_whole ? geometry.NumSpans(rows.end) : own;
    count +=
        (end - begin) * NumOtherOwners({first, asked_end}, SpanOwner(own, 0, num_ranks), num_ranks);
    begin = end;
  }
  return count;
}

}  // namespace

KeyReach ReachOfKeys(PositionRange rows, const SpanGeometry& geometry, KeyWindow window,
                     RankGroups groups) {
  KeyReach reach;
  if (rows.empty()) return reach;
  reach.foreign_queries = NumForeignQueries(rows, geometry, window, groups.num_ranks);
  const bool sees_whole = geometry.mask() == PromptMask::kWhole;
  const int64_t first_span = geometry.FirstSpan(rows.begin, window);
  for (int64_t span = first_span; span < geometry.NumSpans(rows.end); ++span) {
    PositionRange keys = geometry.SpanPositions(span);
    // The last key is out of sight from its position + the window's size on.
    PositionRange seeing{sees_whole ? rows.begin : std::max(rows.begin, keys.begin), rows.end};
    if (window.is_bounded()) seeing.end = std::min(rows.end, keys.end - 1 + window.size);
    if (seeing.empty()) continue;
    keys.end = std::min(keys.end, rows.end);
    const int32_t owner = SpanOwner(span, 0, groups.num_ranks);
    const std::vector<bool> is_there = GroupsOfRows(seeing, geometry, groups);
    reach.seen_positions += keys.size() * std::count(is_there.begin(), is_there.end(), true);
    if (is_there[static_cast<size_t>(owner / groups.group_size)]) {
      reach.own_positions += keys.size();
    }
    reach.foreign_states +=
        seeing.size() - NumOwnedRows(seeing, geometry, {owner, groups.num_ranks});
  }
  return reach;
}

}  // namespace moebius
