// SPDX-License-Identifier: Apache-2.0
// Attention in windows over N ranks gives the bits of one rank, for every method, and asks for no
// span that no window reaches.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/local_ranks.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::FirstDifference;
using testing::LocalRanks;
using testing::MakeAttentionCase;
using testing::MakeTestSession;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;
using testing::Way;
using testing::WaysOf;

constexpr int64_t kSpan = 32;  // the smallest that the kernels compute
constexpr int64_t kWindows[] = {1, 3, kSpan - 1, kSpan, kSpan + 1, 3 * kSpan + 5, 1000};

AttentionCase MakeWindowCase(const std::string& name, int64_t size) {
  AttentionCase model = MakeAttentionCase(name, kSpan);
  model.facts.config.windows = {size, 0};
  return model;
}

class WindowBitsTest : public ::testing::TestWithParam<std::string> {};

// Prefill with and without keys that were there before, then decode.
TEST_P(WindowBitsTest, AreThoseOfOneRankForEveryMethodAndNumberOfRanks) {
  constexpr int64_t kLength = 300;  // ten spans, the last one open
  constexpr int64_t kPrompt = 293;
  for (const int64_t size : kWindows) {
    const AttentionCase model = MakeWindowCase(GetParam(), size);
    const int64_t width = model.facts.hidden_size;
    LocalRanks alone(model, 1);
    const RowBatch<Bf16> expected =
        RunAll(*alone.group, MakeTestSession(1, kLength, kPrompt, width), {kLength});
    for (const int32_t num_ranks : {2, 3, 4, 5, 8}) {
      LocalRanks ranks(model, num_ranks);
      for (const Way& way : WaysOf(num_ranks)) {
        TestSession session = MakeTestSession(1, kLength, kPrompt, width);
        session.method = way.method;
        session.ulysses_ranks = way.ulysses_ranks;
        const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(session), {130, 163, 1});
        EXPECT_EQ(FirstDifference(expected.rows(), found.rows()), "")
            << "window " << size << ", " << AttentionMethodName(way.method) << ", " << num_ranks
            << " ranks in groups of " << way.ulysses_ranks;
      }
    }
  }
}

// Short sessions of every length, all of them in one step.
TEST_P(WindowBitsTest, DoNotDependOnTheCompanyInAStep) {
  const AttentionCase model = MakeWindowCase(GetParam(), 3);
  const int64_t width = model.facts.hidden_size;
  for (const int32_t num_ranks : {1, 3, 8}) {
    const std::vector<int64_t> lengths{0, 1, 2, 3, 7, 2 * num_ranks - 1, 31, 32, 33, 66, 130};
    LocalRanks ranks(model, num_ranks);
    LocalRanks alone(model, 1);
    std::vector<TestSession> sessions;
    std::vector<TestSession*> pointers;
    for (const int64_t length : lengths) {
      const uint64_t id = sessions.size();
      sessions.push_back(MakeTestSession(id, length, std::max<int64_t>(0, length - 1), width));
    }
    for (TestSession& session : sessions) pointers.push_back(&session);
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), 1000));
    for (size_t i = 0; i < sessions.size(); ++i) {
      const RowBatch<Bf16> expected = RunAll(
          *alone.group, MakeTestSession(i, lengths[i], std::max<int64_t>(0, lengths[i] - 1), width),
          {1000});
      EXPECT_EQ(FirstDifference(expected.rows(), sessions[i].out.rows()), "")
          << num_ranks << " ranks, " << lengths[i] << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, WindowBitsTest, ::testing::Values("gqa", "mqa", "mla"),
                         [](const auto& info) { return info.param; });

// By the definition: a span is foreign to a rank's rows iff one of them sees a key of it and
// another rank owns it.
int64_t CountNeededSpans(int64_t num_rows, int64_t size, int32_t rank, int32_t num_ranks) {
  int64_t count = 0;
  for (int64_t span = 0; span * kSpan < num_rows; ++span) {
    bool is_seen = false;
    for (int64_t row = 0; row < num_rows && SpanOwner(span, 0, num_ranks) != rank; ++row) {
      if (SpanOwner(row / kSpan, 0, num_ranks) != rank) continue;
      for (int64_t key = span * kSpan; key < (span + 1) * kSpan; ++key) {
        is_seen = is_seen || (row - size < key && key <= row);
      }
    }
    if (is_seen) ++count;
  }
  return count;
}

TEST(WindowFiguresTest, CountNoSpanThatNoWindowReaches) {
  constexpr int64_t kLength = 590;
  for (const int64_t size : kWindows) {
    const AttentionCase model = MakeWindowCase("gqa", size);
    const int64_t heads = model.facts.config.num_query_heads;
    for (const int32_t num_ranks : {2, 4, 5}) {
      LocalRanks ranks(model, num_ranks);
      TestSession session = MakeTestSession(0, kLength, kLength - 1, model.facts.hidden_size);
      RunTestStep(*ranks.group, {&session}, {kLength - 1});
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const ShardFigures figures = ranks.group->rank(rank).shard_figures();
        EXPECT_EQ(figures.spans_received, CountNeededSpans(kLength - 1, size, rank, num_ranks))
            << "window " << size << ", rank " << rank << " of " << num_ranks;
        EXPECT_LE(figures.max_foreign_spans, 4 * num_ranks - 4);
      }
      RunTestStep(*ranks.group, {&session}, {1});
      const int32_t owner = SpanOwner((kLength - 1) / kSpan, 0, num_ranks);
      int64_t foreign = 0;
      for (int64_t span = 0; span < (kLength - 1) / kSpan; ++span) {
        const bool is_seen = kLength - 1 - size < (span + 1) * kSpan - 1;
        if (is_seen && SpanOwner(span, 0, num_ranks) != owner) ++foreign;
      }
      EXPECT_EQ(ranks.group->rank(owner).shard_figures().states_received, heads * foreign)
          << "window " << size << ", " << num_ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace moebius
