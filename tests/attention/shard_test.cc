// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/shard.h"

#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(ShardTest, ARankAloneOwnsWhatCutByRoleCuts) {
  const StepPlan plan{.sessions = {{.session = SessionId(1), .num_rows = 200, .prompt_length = 150},
                                   {.session = SessionId(2),
                                    .row_begin = 200,
                                    .num_rows = 1,
                                    .position_begin = 700,
                                    .first_rank = 3}},
                      .num_rows = 201};
  const OwnedRows owned = OwnedRowsOf(plan, SpanGeometry(64, 64), Shard{});
  std::vector<RoleRows> cut;
  for (int32_t i = 0; i < static_cast<int32_t>(plan.sessions.size()); ++i) {
    for (const RoleRows& part : CutByRole(plan.sessions[static_cast<size_t>(i)], i)) {
      cut.push_back(part);
    }
  }
  ASSERT_EQ(owned.rows.size(), cut.size());
  for (size_t i = 0; i < cut.size(); ++i) {
    EXPECT_EQ(owned.rows[i].row_begin, cut[i].row_begin);
    EXPECT_EQ(owned.rows[i].num_rows, cut[i].num_rows);
    EXPECT_EQ(owned.rows[i].position_begin, cut[i].position_begin);
  }
  EXPECT_EQ(owned.step_rows, (std::vector<RowRange>{{0, 201}}));
}

TEST(ShardTest, EveryRowHasOneOwnerAndRunsInItsOwnersSpans) {
  const SpanGeometry geometry(64, 64);
  for (int32_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
    StepPlan plan;
    for (const int64_t num_rows : {0, 1, 63, 64, 65, 700}) {
      const int64_t id = static_cast<int64_t>(plan.sessions.size());
      plan.sessions.push_back({.session = SessionId(static_cast<uint64_t>(id)),
                               .row_begin = plan.num_rows,
                               .num_rows = num_rows,
                               .position_begin = 37 * id,
                               .prompt_length = 300,
                               .first_rank = static_cast<int32_t>(id)});
      plan.num_rows += num_rows;
    }
    std::vector<int> owners(static_cast<size_t>(plan.num_rows), 0);
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const OwnedRows owned = OwnedRowsOf(plan, geometry, {rank, num_ranks});
      int64_t own_row = 0;
      for (const RowRange& range : owned.step_rows) {
        for (int64_t row = range.begin; row < range.end; ++row) ++owners[static_cast<size_t>(row)];
        own_row += range.end - range.begin;
      }
      EXPECT_EQ(own_row, owned.num_rows);
      int64_t next = 0;
      for (const RoleRows& rows : owned.rows) {
        EXPECT_EQ(rows.row_begin, next);
        next += rows.num_rows;
        const SessionRows& session = plan.sessions[static_cast<size_t>(rows.session_index)];
        for (int64_t p = rows.position_begin; p < rows.position_end(); ++p) {
          EXPECT_EQ(SpanOwner(geometry.SpanOf(p), session.first_rank, num_ranks), rank);
          EXPECT_EQ(rows.role == TokenRole::kPrompt, p < session.prompt_length);
        }
      }
      EXPECT_EQ(next, owned.num_rows);
    }
    for (const int count : owners) EXPECT_EQ(count, 1);
  }
}

// Packed sequences: documents of different lengths in one step, each up to a unit of 2N spans. Of
// every one rank r has [b_r, b_{r+1}) and [b_{2N-1-r}, b_{2N-r}) with b_j = ⌊j · T / 2N⌋ of that
// document's T, wherever its rows begin in the step.
TEST(ShardTest, PackedDocumentsAreEachAZigzagOfTheirOwn) {
  const std::vector<int64_t> lengths = {7, 1, 100, 64, 3, 128, 31};
  for (int64_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
    StepPlan plan;
    std::vector<std::vector<bool>> expected(static_cast<size_t>(num_ranks));
    for (const int64_t length : lengths) {
      plan.sessions.push_back({.session = SessionId(plan.sessions.size() + 1),
                               .row_begin = plan.num_rows,
                               .num_rows = length,
                               .prompt_length = length});
      plan.num_rows += length;
      const auto bound = [&](int64_t j) { return j * length / (2 * num_ranks); };
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        for (int64_t position = 0; position < length; ++position) {
          const bool is_first = bound(rank) <= position && position < bound(rank + 1);
          const bool is_second =
              bound(2 * num_ranks - 1 - rank) <= position && position < bound(2 * num_ranks - rank);
          expected[static_cast<size_t>(rank)].push_back(is_first || is_second);
        }
      }
    }
    const SpanGeometry geometry(64, 64, AttentionSum::kPerDegree, static_cast<int32_t>(num_ranks));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      std::vector<bool> found(static_cast<size_t>(plan.num_rows));
      const OwnedRows owned = OwnedRowsOf(plan, geometry, {rank, static_cast<int32_t>(num_ranks)});
      for (const RowRange& range : owned.step_rows) {
        for (int64_t row = range.begin; row < range.end; ++row) {
          found[static_cast<size_t>(row)] = true;
        }
      }
      EXPECT_EQ(found, expected[static_cast<size_t>(rank)])
          << "rank " << rank << " of " << num_ranks;
    }
  }
}

TEST(ShardTest, CountsOwnedSpansAsTheRuleDoes) {
  for (int32_t num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      int64_t count = 0;
      for (int64_t span = 0; span < 40; ++span) {
        EXPECT_EQ(NumOwnedSpans({0, span}, 2, {rank, num_ranks}), count);
        if (SpanOwner(span, 2, num_ranks) == rank) ++count;
      }
    }
  }
}

}  // namespace
}  // namespace moebius
