// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/span_tasks.h"

#include <map>
#include <tuple>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(CutByRoleTest, CutsWhereThePromptEnds) {
  const StepPlan plan{
      .sessions = {{.session = SessionId(1), .row_begin = 0, .num_rows = 5, .prompt_length = 3},
                   {.session = SessionId(2), .row_begin = 5, .num_rows = 0},
                   {.session = SessionId(3),
                    .row_begin = 5,
                    .num_rows = 2,
                    .position_begin = 7,
                    .prompt_length = 4}},
      .num_rows = 7};
  std::vector<RoleRows> rows;
  for (int32_t i = 0; i < static_cast<int32_t>(plan.sessions.size()); ++i) {
    for (const RoleRows& part : CutByRole(plan.sessions[static_cast<size_t>(i)], i)) {
      rows.push_back(part);
    }
  }
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].role, TokenRole::kPrompt);
  EXPECT_EQ(rows[0].num_rows, 3);
  EXPECT_EQ(rows[1].role, TokenRole::kGenerated);
  EXPECT_EQ(rows[1].row_begin, 3);
  EXPECT_EQ(rows[1].position_begin, 3);
  EXPECT_EQ(rows[1].num_rows, 2);
  EXPECT_EQ(rows[2].session_index, 2);
  EXPECT_EQ(rows[2].role, TokenRole::kGenerated);
  EXPECT_EQ(rows[2].position_begin, 7);
}

TEST(SegmentTasksTest, HoldEverySpanOnceInSegmentsAtAbsolutePositions) {
  for (const AttentionLayout layout : kAttentionLayouts) {
    for (const int32_t num_ranks : {1, 2, 3, 8}) {
      const SpanGeometry geometry(256, 32, AttentionSum::kPerDegree, num_ranks, layout);
      const int64_t segment_size = 16 * 32 * num_ranks;
      const SessionSpans spans(geometry, 3 * segment_size - 100);
      const int64_t length = 5 * segment_size + 1;
      const SpanTask task{.key_group = 2,
                          .num_rows = 1,
                          .span_begin = spans.SpanOf(segment_size + 7),
                          .span_end = spans.NumSpans(length),
                          .owner = 0};
      std::vector<SpanTask> parts;
      AppendSegmentTasks(task, spans, 1, parts);
      ASSERT_EQ(parts.size(), 5u) << num_ranks;
      int64_t next = task.span_begin;
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].span_begin, next);
        EXPECT_EQ(parts[i].slot_begin, static_cast<int64_t>(i));
        EXPECT_EQ(parts[i].key_group, 2);
        EXPECT_EQ(parts[i].owner, 0);
        EXPECT_FALSE(parts[i].finishes);
        next = parts[i].span_end;
        // Spans that begin in a segment are of it, the same wherever the task begins.
        const int64_t first = spans.SpanPositions(parts[i].span_begin).begin;
        const int64_t last = spans.SpanPositions(next - 1).begin;
        EXPECT_EQ(first / segment_size, static_cast<int64_t>(i) + 1);
        EXPECT_EQ(last / segment_size, static_cast<int64_t>(i) + 1);
      }
      EXPECT_EQ(next, task.span_end);
    }
  }
}

TEST(SpanTasksTest, HoldEveryStateOnceHoweverTheyAreCut) {
  const SpanGeometry geometry(64, 64);
  for (const int64_t num_rows : {1, 3, 4, 5, 33, 200}) {
    for (const int64_t position : {0, 1, 63, 64, 300}) {
      for (const int64_t size : {0, 1, 3, 63, 64, 65, 1000}) {
        const KeyWindow window{size};
        const RoleRows rows{.num_rows = num_rows, .position_begin = position};
        const int64_t first_span = geometry.FirstSpan(position, window);
        for (const int64_t max_task_spans : {1, 2, 100}) {
          std::vector<SpanTask> tasks;
          AppendSpanTasks(rows, 0, geometry, window,
                          {.num_key_groups = 3, .tile_rows = 2, .max_task_spans = max_task_spans},
                          tasks);
          std::map<std::tuple<int64_t, int32_t, int64_t>, int> states;
          for (const SpanTask& task : tasks) {
            EXPECT_EQ(task.finishes, tasks[0].finishes);
            EXPECT_EQ(task.slot_begin, task.span_begin - first_span);
            int64_t seen = 0;
            for (int64_t span = task.span_begin; span < task.span_end; ++span) {
              for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
                if (geometry.NumVisibleKeys(span, position + row, window) == 0) continue;
                ++states[{row, task.key_group, span}];
                ++seen;
              }
            }
            EXPECT_GE(seen, task.span_end - task.span_begin);
            EXPECT_LT(task.span_begin, task.span_end);
          }
          int64_t expected = 0;
          for (int64_t row = 0; row < num_rows; ++row) {
            expected += 3 * (1 + geometry.NumEarlierSpans(position + row, window));
          }
          EXPECT_EQ(static_cast<int64_t>(states.size()), expected);
          for (const auto& [state, count] : states) EXPECT_EQ(count, 1);
        }
      }
    }
  }
}

TEST(SpanTasksTest, SplitsFewRowsBySpansAndManyRowsNever) {
  const SpanGeometry geometry(64, 64);
  std::vector<SpanTask> tasks;
  AppendSpanTasks({.num_rows = 1, .position_begin = 640}, 0, geometry, {}, {.max_task_spans = 3},
                  tasks);
  ASSERT_EQ(tasks.size(), 4u);
  EXPECT_FALSE(tasks[0].finishes);
  EXPECT_EQ(tasks[3].span_end, 11);
  tasks.clear();
  AppendSpanTasks({.num_rows = 5, .position_begin = 640}, 0, geometry, {}, {.max_task_spans = 3},
                  tasks);
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_TRUE(tasks[0].finishes);
}

}  // namespace
}  // namespace moebius
