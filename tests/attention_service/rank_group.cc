// SPDX-License-Identifier: Apache-2.0
#include "tests/attention_service/rank_group.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "gtest/gtest.h"

#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"

namespace moebius::testing {

RankGroup::RankGroup(const AttentionCase& model, const std::vector<KvExchange*>& exchanges,
                     int64_t tokens, int threads)
    : model_(model) {
  const auto num_ranks = static_cast<int32_t>(std::max<size_t>(1, exchanges.size()));
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    ranks_.emplace_back();
    ranks_.back().executor = std::make_unique<Executor>(threads > 0 ? threads : rank % 2 + 1);
    Sharding sharding{.shard = {rank, num_ranks}};
    if (num_ranks > 1) sharding.exchange = exchanges[static_cast<size_t>(rank)];
    // Ranks of different tiers work together.
    const std::vector<Tier> tiers = HostTiers();
    const Tier tier = tiers[static_cast<size_t>(rank) % tiers.size()];
    ranks_.back().pipeline =
        MakePipeline(model, *FindKernels(tier), *ranks_.back().executor, tokens, sharding);
  }
}

absl::Status RankGroup::RunRank(int32_t rank, const StepPlan& plan, Bf16Rows in,
                                MutableBf16Rows out, int64_t layers) {
  AttentionPipeline& pipeline = this->rank(rank);
  const SpanGeometry geometry = GeometryOf(model_.facts, num_ranks());
  const OwnedRows owned = OwnedRowsOf(plan, geometry, {rank, num_ranks()});
  MOEBIUS_RETURN_IF_ERROR(pipeline.BeginStep(plan));
  EXPECT_EQ(pipeline.num_own_rows(), owned.num_rows);
  RowBatch<Bf16> own_in(owned.num_rows, in.width);
  RowBatch<Bf16> own_out(owned.num_rows, in.width);
  int64_t own = 0;
  for (const RowRange& range : owned.step_rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++own) {
      std::copy_n(in.row(row), in.width, own_in.rows().row(own));
    }
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    MOEBIUS_RETURN_IF_ERROR(pipeline.RunLayer(layer, own_in.rows(), own_out.rows()));
  }
  own = 0;
  for (const RowRange& range : owned.step_rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++own) {
      std::copy_n(own_out.rows().row(own), in.width, out.row(row));
    }
  }
  return absl::OkStatus();
}

std::vector<absl::Status> RankGroup::RunStep(const StepPlan& plan, Bf16Rows in, MutableBf16Rows out,
                                             int64_t layers) {
  std::vector<absl::Status> statuses(ranks_.size());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    threads.emplace_back(
        [&, rank] { statuses[static_cast<size_t>(rank)] = RunRank(rank, plan, in, out, layers); });
  }
  for (std::thread& thread : threads) thread.join();
  const bool ok = std::all_of(statuses.begin(), statuses.end(),
                              [](const absl::Status& status) { return status.ok(); });
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    if (ok) {
      EXPECT_TRUE(this->rank(rank).CommitStep().ok());
    } else {
      this->rank(rank).AbortStep();
    }
  }
  return statuses;
}

void RankGroup::EndSession(SessionId session) {
  for (Rank& rank : ranks_) rank.pipeline->EndSession(session);
}

TestSession MakeTestSession(uint64_t id, int64_t num_rows, int64_t prompt_length, int64_t width) {
  return {.id = SessionId(id),
          .first_rank = static_cast<int32_t>(id),
          .prompt_length = prompt_length,
          .rows = MakeRows(100 + id, num_rows, width),
          .out = RowBatch<Bf16>(num_rows, width)};
}

void RunTestStep(RankGroup& group, const std::vector<TestSession*>& sessions,
                 const std::vector<int64_t>& chunks) {
  StepPlan plan;
  static std::atomic<uint64_t> next_step{1};
  plan.step = next_step++;
  for (size_t i = 0; i < sessions.size(); ++i) {
    const TestSession& session = *sessions[i];
    plan.sessions.push_back(
        {.session = session.id,
         .row_begin = plan.num_rows,
         .num_rows = std::min(chunks[i], session.rows.num_rows() - session.length),
         .position_begin = session.length,
         .prompt_length = session.prompt_length,
         .first_rank = session.first_rank,
         .method = session.method,
         .ulysses_ranks = session.ulysses_ranks});
    plan.num_rows += plan.sessions.back().num_rows;
  }
  const int64_t width = sessions[0]->rows.width();
  RowBatch<Bf16> in(plan.num_rows, width);
  RowBatch<Bf16> out(plan.num_rows, width);
  for (size_t i = 0; i < sessions.size(); ++i) {
    const SessionRows& rows = plan.sessions[i];
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      std::copy_n(sessions[i]->rows.rows().row(rows.position_begin + r), width,
                  in.rows().row(rows.row_begin + r));
    }
  }
  const std::vector<absl::Status> statuses = group.RunStep(plan, in.rows(), out.rows());
  for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < sessions.size(); ++i) {
    const SessionRows& rows = plan.sessions[i];
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      std::copy_n(out.rows().row(rows.row_begin + r), width,
                  sessions[i]->out.rows().row(rows.position_begin + r));
    }
    sessions[i]->length = rows.position_end();
  }
}

}  // namespace moebius::testing
