// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "attention_service/local_exchange.h"
#include "tests/attention_service/rank_group.h"

namespace moebius::testing {

/// Ranks with an exchange inside the process.
struct LocalRanks {
  LocalRanks(const AttentionCase& model, int32_t num_ranks, int64_t tokens = 4096, int threads = 0)
      : exchange(num_ranks, GeometryOf(model.facts, num_ranks),
                 model.facts.config.num_query_heads) {
    std::vector<KvExchange*> exchanges;
    for (int32_t rank = 0; num_ranks > 1 && rank < num_ranks; ++rank) {
      exchanges.push_back(&exchange.rank(rank));
    }
    group = std::make_unique<RankGroup>(model, exchanges, tokens, threads);
  }
  LocalExchange exchange;
  std::unique_ptr<RankGroup> group;
};

/// A method, and the ranks of its groups.
struct Way {
  AttentionMethod method = AttentionMethod::kRingPassKv;
  int32_t ulysses_ranks = 1;
};
/// Every one that so many ranks have.
inline std::vector<Way> WaysOf(int32_t num_ranks) {
  if (num_ranks == 1) return {{AttentionMethod::kLocal}};
  std::vector<Way> ways{{AttentionMethod::kAllGather},
                        {AttentionMethod::kRingPassKv},
                        {AttentionMethod::kRingPassQ},
                        {AttentionMethod::kUlysses, num_ranks}};
  for (int32_t parts = 2; parts < num_ranks; ++parts) {
    if (num_ranks % parts == 0) ways.push_back({AttentionMethod::k2d, parts});
  }
  return ways;
}

/// All rows of a session in steps of so many; the last number goes on.
inline RowBatch<Bf16> RunAll(RankGroup& group, TestSession session,
                             const std::vector<int64_t>& chunks) {
  for (size_t i = 0; session.length < session.rows.num_rows(); ++i) {
    RunTestStep(group, {&session}, {chunks[std::min(i, chunks.size() - 1)]});
  }
  group.EndSession(session.id);
  return std::move(session.out);
}

/// A step of three ranks of which one has died fails with UNAVAILABLE and the dead one's name.
inline void ExpectADeadRankIsNamed(const AttentionCase& model) {
  LocalRanks ranks(model, 3);
  TestSession session = MakeTestSession(0, 400, 390, model.facts.hidden_size);
  RunTestStep(*ranks.group, {&session}, {300});
  ranks.exchange.Fail(1, absl::UnavailableError("attention-1 died"));
  const StepPlan plan{.step = 6000000,
                      .sessions = {{.session = session.id,
                                    .num_rows = 100,
                                    .position_begin = 300,
                                    .prompt_length = 390}},
                      .num_rows = 100};
  RowBatch<Bf16> rows(100, model.facts.hidden_size);
  const auto statuses = ranks.group->RunStep(plan, rows.rows(), rows.rows());
  EXPECT_TRUE(std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& status) {
    return absl::IsUnavailable(status) && status.message() == "attention-1 died";
  }));
}

}  // namespace moebius::testing
