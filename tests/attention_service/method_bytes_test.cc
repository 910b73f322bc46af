// SPDX-License-Identifier: Apache-2.0
// What each method sends between ranks, against the formulas of docs/attention_ranks.md.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/attention/head_groups.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/rank_world.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::MakeAttentionCase;
using testing::MakeRows;
using testing::RankWorld;

constexpr int64_t kRows = 410;  // seven spans of 64, the last one open
constexpr int64_t kSpan = 64;
constexpr int64_t kNumSpans = (kRows + kSpan - 1) / kSpan;
constexpr int64_t kLayers = 2;
constexpr SessionId kSession{5};

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Bytes {
  int64_t questions = 0;
  int64_t answers = 0;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

// One prompt of kRows in one step.
struct Formula {
  Formula(const AttentionCase& model, int32_t num_ranks, AttentionMethod method)
      : config(model.facts.config), window(config.WindowOf(0)), num_ranks(num_ranks) {
    if (method == AttentionMethod::kUlysses) group_size = num_ranks;
    if (method == AttentionMethod::k2d) group_size = GroupSizeOf2d(num_ranks);
    first_rank = static_cast<int32_t>(kSession.value() % num_ranks);
    plan = {.sessions = {{.session = kSession,
                          .num_rows = kRows,
                          .prompt_length = kRows,
                          .first_rank = first_rank,
                          .method = method,
                          .ulysses_ranks = group_size}},
            .num_rows = kRows};
  }

  OwnedRows RowsOf(int32_t rank) const {
    return OwnedRowsOf(plan, SpanGeometry(kSpan, kSpan), {rank, num_ranks});
  }
  int64_t KvWidth(HeadRange heads) const {
    if (config.mla.has_value()) return config.mla->kv_lora_rank + config.mla->qk_rope_dim;
    return KvHeadsOf(heads, config.num_query_heads, config.num_kv_heads).size() *
           (config.qk_head_dim + config.v_head_dim);
  }

  // Whether one of the rows sees a key of the span.
  bool Sees(const std::vector<RoleRows>& rows, int64_t span) const {
    if (!config.is_causal) return !rows.empty();
    for (const RoleRows& part : rows) {
      for (int64_t row = part.position_begin; row < part.position_end(); ++row) {
        const bool in_window = window == 0 || row - window < (span + 1) * kSpan - 1;
        if (span * kSpan <= row && in_window) return true;
      }
    }
    return false;
  }
  int64_t FirstSpan(int64_t row) const {
    return window == 0 ? 0 : std::max<int64_t>(0, row - window + 1) / kSpan;
  }
  // Parts whose rows see from the same span on.
  std::vector<RoleRows> PartsOf(int32_t rank) const {
    std::vector<RoleRows> parts;
    for (const RoleRows& rows : RowsOf(rank).rows) {
      for (int64_t i = 0; i < rows.num_rows; ++i) {
        const int64_t row = rows.position_begin + i;
        if (i == 0 || FirstSpan(row) != FirstSpan(row - 1)) {
          parts.push_back(rows);
          parts.back().position_begin = row;
          parts.back().num_rows = 0;
        }
        ++parts.back().num_rows;
      }
    }
    return parts;
  }

  // The keys that `rows` see and `rank` does not hold, in rounds of so many spans.
  void AddKeys(int32_t rank, const std::vector<RoleRows>& rows, int64_t round, HeadRange heads) {
    for (int64_t begin = 0; begin < kNumSpans; begin += round) {
      for (int32_t holder = 0; holder < num_ranks; ++holder) {
        int64_t spans = 0;
        int64_t positions = 0;
        for (int64_t span = begin; span < std::min(begin + round, kNumSpans); ++span) {
          if (holder == rank || SpanOwner(span, first_rank, num_ranks) != holder) continue;
          if (!Sees(rows, span)) continue;
          ++spans;
          positions += std::min(kRows, (span + 1) * kSpan) - span * kSpan;
        }
        if (spans == 0) continue;
        bytes.questions += Padded(8 + 12 * spans);
        bytes.answers += 64 + positions * KvWidth(heads) * 2;
      }
    }
  }

  void AddRounds(int32_t rank, int64_t round) {
    AddKeys(rank, RowsOf(rank).rows, round, {0, static_cast<int32_t>(config.num_query_heads)});
  }

  void AddStates(int32_t rank) {
    for (int32_t holder = 0; holder < num_ranks; ++holder) {
      int64_t parts = 0, rows = 0, states = 0;
      for (const RoleRows& part : PartsOf(rank)) {
        const int64_t own = part.position_begin / kSpan;
        const SpanRange asked{FirstSpan(part.position_begin), config.is_causal ? own : kNumSpans};
        const int64_t spans = NumOwnedSpans(asked, first_rank, {holder, num_ranks});
        if (holder == rank || spans == 0) continue;
        ++parts;
        rows += part.num_rows;
        states += part.num_rows * config.num_query_heads * spans;
      }
      if (parts == 0) continue;
      bytes.questions +=
          Padded(4 + 20 * parts) + rows * config.num_query_heads * config.qk_head_dim * 2;
      bytes.answers += 64 + states * (4 * config.v_head_dim + 8);
    }
  }

  void AddHeads(int32_t rank) {
    const int32_t first = FirstOfGroup(rank, group_size);
    const auto heads_of = [&](int32_t mate) {
      return QueryHeadsOf(mate - first, group_size, config.num_query_heads);
    };
    const HeadRange own = heads_of(rank);
    std::vector<RoleRows> group_rows;
    for (int32_t mate = first; mate < first + group_size; ++mate) {
      const OwnedRows rows = RowsOf(mate);
      group_rows.insert(group_rows.end(), rows.rows.begin(), rows.rows.end());
      if (mate == rank) continue;
      if (rows.num_rows > 0 && !own.empty()) {
        bytes.questions += 64;
        bytes.answers += 64 + rows.num_rows * own.size() * config.qk_head_dim * 2;
      }
      if (RowsOf(rank).num_rows > 0 && !heads_of(mate).empty()) {
        bytes.questions += 64;
        bytes.answers += 64 + RowsOf(rank).num_rows * heads_of(mate).size() * config.v_head_dim * 2;
      }
    }
    if (!own.empty()) AddKeys(rank, group_rows, 2 * num_ranks, own);
  }

  AttentionConfig config;
  int64_t window;
  int32_t num_ranks;
  int32_t group_size = 1;
  int32_t first_rank = 0;
  StepPlan plan;
  Bytes bytes;
};

class MethodBytesTest : public ::testing::TestWithParam<std::string> {};

// Runs the prompt by every method and compares all ranks' bytes.
void ExpectBytesOfTheFormulas(const AttentionCase& model) {
  const RowBatch<Bf16> rows = MakeRows(3, kRows, model.facts.hidden_size);
  for (const int32_t num_ranks : {2, 3, 4}) {
    for (const AttentionMethod method : kAttentionMethods) {
      const bool has_groups = num_ranks == 4 || method != AttentionMethod::k2d;
      if (method == AttentionMethod::kLocal || !has_groups) continue;
      Formula formula(model, num_ranks, method);
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        switch (method) {
          case AttentionMethod::kAllGather:
            formula.AddRounds(rank, kRows);
            break;
          case AttentionMethod::kRingPassQ:
            formula.AddStates(rank);
            break;
          case AttentionMethod::kUlysses:
          case AttentionMethod::k2d:
            formula.AddHeads(rank);
            break;
          default:
            formula.AddRounds(rank, 2 * num_ranks);
        }
      }
      RankWorld world(model, num_ranks, method);
      RowBatch<Bf16> out(kRows, model.facts.hidden_size);
      StepPlan plan = formula.plan;
      plan.step = 1;
      ASSERT_TRUE(world.port().BeginStep(plan).ok());
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const absl::Status status = world.port().RunLayer(LayerId(layer), rows.rows(), out.rows());
        ASSERT_TRUE(status.ok()) << status;
      }
      ASSERT_TRUE(world.port().CommitStep().ok());
      Bytes found;
      for (int32_t rank = 0; rank < num_ranks; ++rank) {
        const RankFigures figures = world.rank(rank).rank().figures();
        found.questions += figures.exchange.question_bytes;
        found.answers += figures.exchange.answer_bytes;
        EXPECT_EQ(figures.exchange.questions, figures.exchange.answers);
        if (method != AttentionMethod::kAllGather) {
          EXPECT_LE(figures.shard.max_foreign_spans, 4 * num_ranks - 4);
        }
      }
      EXPECT_EQ(found.questions, kLayers * formula.bytes.questions)
          << num_ranks << " ranks, " << AttentionMethodName(method);
      EXPECT_EQ(found.answers, kLayers * formula.bytes.answers)
          << num_ranks << " ranks, " << AttentionMethodName(method);
    }
  }
}

TEST_P(MethodBytesTest, AreThoseOfTheFormulas) {
  ExpectBytesOfTheFormulas(MakeAttentionCase(GetParam(), kSpan));
}

// Spans that no window reaches are not asked for.
TEST_P(MethodBytesTest, InWindowsAreThoseOfTheFormulas) {
  AttentionCase model = MakeAttentionCase(GetParam(), kSpan);
  for (const int64_t size : {int64_t{1}, int64_t{3}, kSpan + 1, 3 * kSpan}) {
    SCOPED_TRACE(size);
    model.facts.config.windows = {size, size};
    ExpectBytesOfTheFormulas(model);
  }
}

// Every rank with rows needs every span of others.
TEST_P(MethodBytesTest, NotCausalAreThoseOfTheFormulas) {
  AttentionCase model = MakeAttentionCase(GetParam(), kSpan);
  model.facts.config.is_causal = false;
  ExpectBytesOfTheFormulas(model);
}

INSTANTIATE_TEST_SUITE_P(Cases, MethodBytesTest, ::testing::Values("gqa", "mqa", "mha", "mla"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace moebius
