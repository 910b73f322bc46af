// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/key_reach.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/attention/shard.h"

namespace moebius {
namespace {

constexpr int64_t kSpan = 32;

// One row and one key at a time.
KeyReach ByDefinition(PositionRange rows, KeyWindow window, RankGroups groups,
                      PromptMask mask = PromptMask::kCausal) {
  KeyReach reach;
  const auto owner = [&](int64_t position) {
    return SpanOwner(position / kSpan, 0, groups.num_ranks);
  };
  for (int64_t begin = 0; begin < rows.end; begin += kSpan) {
    const int64_t end = std::min(begin + kSpan, rows.end);
    std::set<int32_t> seeing;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      bool sees = false;
      for (int64_t key = begin; key < end; ++key) {
        const bool in_window = window.size == 0 || row - window.size < key;
        sees = sees || (in_window && (key <= row || mask == PromptMask::kWhole));
      }
      if (!sees) continue;
      seeing.insert(owner(row) / groups.group_size);
      if (owner(row) != owner(begin)) ++reach.foreign_states;
    }
    reach.seen_positions += (end - begin) * static_cast<int64_t>(seeing.size());
    if (seeing.contains(owner(begin) / groups.group_size)) reach.own_positions += end - begin;
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    std::set<int32_t> owners;
    const int64_t first = window.size == 0 ? 0 : std::max<int64_t>(0, row - window.size + 1);
    const int64_t last = mask == PromptMask::kWhole ? rows.end - 1 : row;
    for (int64_t key = first; key <= last; ++key) owners.insert(owner(key));
    owners.erase(owner(row));
    reach.foreign_queries += static_cast<int64_t>(owners.size());
  }
  return reach;
}

TEST(KeyReachTest, IsThatOfTheDefinition) {
  const SpanGeometry geometry(kSpan, kSpan);
  for (const int64_t size : {0, 1, 3, 31, 32, 33, 100, 1000}) {
    for (const PositionRange rows :
         {PositionRange{0, 0}, PositionRange{0, 1}, PositionRange{0, 300}, PositionRange{200, 201},
          PositionRange{130, 300}, PositionRange{0, 64}}) {
      for (const RankGroups groups : {RankGroups{1, 1}, RankGroups{2, 1}, RankGroups{3, 1},
                                      RankGroups{4, 2}, RankGroups{5, 1}, RankGroups{8, 4}}) {
        const KeyReach found = ReachOfKeys(rows, geometry, {size}, groups);
        const KeyReach expected = ByDefinition(rows, {size}, groups);
        EXPECT_EQ(found.seen_positions, expected.seen_positions) << size << " " << rows.begin;
        EXPECT_EQ(found.own_positions, expected.own_positions) << size << " " << rows.begin;
        EXPECT_EQ(found.foreign_states, expected.foreign_states) << size << " " << rows.begin;
        EXPECT_EQ(found.foreign_queries, expected.foreign_queries) << size << " " << rows.begin;
      }
    }
  }
}

SpanGeometry WholeGeometry() {
  return {kSpan, kSpan, AttentionSum::kCanonical, 1, AttentionLayout::kZigzag, PromptMask::kWhole};
}

TEST(KeyReachTest, OfAWholePromptIsThatOfTheDefinition) {
  for (const int64_t num_rows : {0, 1, 31, 33, 64, 300}) {
    for (const RankGroups groups : {RankGroups{1, 1}, RankGroups{2, 1}, RankGroups{3, 1},
                                    RankGroups{4, 2}, RankGroups{5, 1}, RankGroups{8, 4}}) {
      const PositionRange rows{0, num_rows};
      const KeyReach found = ReachOfKeys(rows, WholeGeometry(), {}, groups);
      const KeyReach expected = ByDefinition(rows, {}, groups, PromptMask::kWhole);
      EXPECT_EQ(found.seen_positions, expected.seen_positions) << num_rows;
      EXPECT_EQ(found.own_positions, expected.own_positions) << num_rows;
      EXPECT_EQ(found.foreign_states, expected.foreign_states) << num_rows;
      EXPECT_EQ(found.foreign_queries, expected.foreign_queries) << num_rows;
    }
  }
}

// What each rank asks for adds up to what the reach counts.
TEST(KeyReachTest, IsWhatTheRanksNeedOfOthers) {
  const SpanGeometry geometry(kSpan, kSpan);
  constexpr int64_t kRows = 300;
  for (const int64_t size : {0, 1, 31, 33, 200}) {
    for (const int32_t num_ranks : {1, 2, 3, 5, 8}) {
      const StepPlan plan{
          .sessions = {{.session = SessionId(1), .num_rows = kRows, .prompt_length = kRows}},
          .num_rows = kRows};
      int64_t needed = 0;
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const Shard shard{rank, num_ranks};
        const OwnedRows owned = OwnedRowsOf(plan, geometry, shard);
        for (const int64_t span : ForeignSpansOf(owned.rows, geometry, {size}, shard)) {
          needed += std::min(kRows, (span + 1) * kSpan) - span * kSpan;
        }
      }
      const KeyReach reach = ReachOfKeys({0, kRows}, geometry, {size}, {num_ranks, 1});
      EXPECT_EQ(needed, reach.seen_positions - reach.own_positions)
          << "window " << size << ", " << num_ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace moebius
