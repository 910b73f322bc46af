// SPDX-License-Identifier: Apache-2.0
// A step of ranks that share their keys allocates nothing once one as large has run.
#include <algorithm>
#include <barrier>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "attention_service/local_exchange.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/support/counting_allocator.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::MakeAttentionCase;
using testing::MakePipeline;
using testing::MakeRows;

constexpr int64_t kSpan = 32;
constexpr int64_t kMaxRows = 2400;  // of a step

// Sessions of one length.
struct Sessions {
  uint64_t count = 3;
  int64_t prompt = 200;
  int64_t length() const { return prompt + 10; }  // when steps are counted
};

// N ranks, each with a thread that is there from the start.
class Ranks {
 public:
  Ranks(const AttentionCase& model, int32_t num_ranks)
      : exchange_(num_ranks, GeometryOf(model.facts, num_ranks),
                  model.facts.config.num_query_heads),
        geometry_(GeometryOf(model.facts, num_ranks)),
        barrier_(num_ranks + 1),
        ran_(num_ranks),
        in_(kMaxRows, model.facts.hidden_size) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      executors_.push_back(std::make_unique<Executor>(rank % 2 + 1));
      pipelines_.push_back(MakePipeline(model, BestKernels(), *executors_.back(), 4096,
                                        {{rank, num_ranks}, &exchange_.rank(rank)}));
      owned_.emplace_back();
      out_.emplace_back(kMaxRows, model.facts.hidden_size);
    }
    constexpr int64_t kDistinct = 200;
    const RowBatch<Bf16> rows = MakeRows(1, kDistinct, model.facts.hidden_size);
    for (int64_t row = 0; row < kMaxRows; ++row) {
      std::copy_n(rows.rows().row(row % kDistinct), in_.width(), in_.rows().row(row));
    }
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      threads_.emplace_back([this, rank] { Serve(static_cast<size_t>(rank)); });
    }
  }
  ~Ranks() {
    is_stopping_ = true;
    barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  // Allocations of a step.
  int64_t Run(const StepPlan& plan) {
    plan_ = &plan;
    const int64_t allocations = NumAllocations();
    barrier_.arrive_and_wait();
    barrier_.arrive_and_wait();
    return NumAllocations() - allocations;
  }

 private:
  void Serve(size_t rank) {
    while (true) {
      barrier_.arrive_and_wait();
      if (is_stopping_) return;
      RunRank(rank);
      barrier_.arrive_and_wait();
    }
  }
  void RunRank(size_t rank) {
    AttentionPipeline& pipeline = *pipelines_[rank];
    FillOwnedRows(*plan_, geometry_,
                  {static_cast<int32_t>(rank), static_cast<int32_t>(pipelines_.size())},
                  owned_[rank]);
    const int64_t num_rows = owned_[rank].num_rows;
    absl::Status status = pipeline.BeginStep(*plan_);
    for (int64_t layer = 0; layer < 2; ++layer) {
      if (status.ok()) {
        status = pipeline.RunLayer(layer, Bf16Rows(in_.rows()).Slice(0, num_rows),
                                   out_[rank].rows().Slice(0, num_rows));
      }
      if (!status.ok()) exchange_.Fail(static_cast<int32_t>(rank), status);
      ran_.arrive_and_wait();  // a layer's rows go on when all ranks have run it
    }
    if (status.ok()) status = pipeline.CommitStep();
    EXPECT_TRUE(status.ok()) << status;
  }

  LocalExchange exchange_;
  const SpanGeometry geometry_;
  std::barrier<> barrier_;  // of the ranks and who runs steps
  std::barrier<> ran_;      // of the ranks
  RowBatch<Bf16> in_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<AttentionPipeline>> pipelines_;
  std::vector<OwnedRows> owned_;
  std::vector<RowBatch<Bf16>> out_;
  const StepPlan* plan_ = nullptr;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

struct Way {
  AttentionMethod method;
  int32_t ulysses_ranks = 1;
};

// Rows [begin, end) of every session.
StepPlan PlanOf(const Sessions& sessions, uint64_t step, int64_t begin, int64_t end, Way way) {
  StepPlan plan{.step = step};
  for (uint64_t id = 1; id <= sessions.count; ++id) {
    plan.sessions.push_back({.session = SessionId(id),
                             .row_begin = plan.num_rows,
                             .num_rows = end - begin,
                             .position_begin = begin,
                             .prompt_length = sessions.prompt,
                             .first_rank = static_cast<int32_t>(id),
                             .method = way.method,
                             .ulysses_ranks = way.ulysses_ranks});
    plan.num_rows += end - begin;
  }
  return plan;
}

class ShardedAllocationTest : public ::testing::TestWithParam<std::string> {};

// Runs the rows [begin, end) of every session again and again: positions that have run before make
// no new keys, and the same work. Few rows, so that answers fit in small blocks. A second thread
// that gets its first task late takes its scratch then, and every 31st plan is checked by code that
// allocates.
void ExpectCleanSteps(Ranks& ranks, const Sessions& sessions, int64_t begin, int64_t end, Way way,
                      uint64_t& step) {
  std::vector<int64_t> counts;
  for (int i = 0; i < 16; ++i) {
    const StepPlan plan = PlanOf(sessions, step++, begin, end, way);
    counts.push_back(ranks.Run(plan));
  }
  EXPECT_GE(std::count(counts.begin() + 4, counts.end(), 0), 6)
      << absl::StrCat(AttentionMethodName(way.method), ", rows ", begin, " to ", end, ": ",
                      absl::StrJoin(counts, " "));
}

TEST_P(ShardedAllocationTest, AStepAllocatesNothingInSteadyState) {
  const std::pair<AttentionSum, AttentionLayout> sums[] = {
      {AttentionSum::kCanonical, AttentionLayout::kZigzag},
      {AttentionSum::kPerDegree, AttentionLayout::kZigzag},
      {AttentionSum::kPerDegree, AttentionLayout::kContiguous},
      {AttentionSum::kPerDegree, AttentionLayout::kStriped}};
  const Sessions sessions;
  for (const auto& [sum, layout] : sums) {
    AttentionCase model = MakeAttentionCase(GetParam(), kSpan);
    model.facts.sum = sum;
    model.facts.layout = layout;
    for (const int32_t num_ranks : {2, 3}) {
      SCOPED_TRACE(absl::StrCat(AttentionSumName(sum), ", ", AttentionLayoutName(layout), ", ",
                                num_ranks, " ranks"));
      for (const Way way :
           {Way{AttentionMethod::kAllGather}, Way{AttentionMethod::kRingPassKv},
            Way{AttentionMethod::kRingPassQ}, Way{AttentionMethod::kUlysses, num_ranks}}) {
        Ranks ranks(model, num_ranks);
        uint64_t step = 1;
        EXPECT_GT(ranks.Run(PlanOf(sessions, step++, 0, sessions.prompt, way)), 0)
            << "the counter counts";
        ranks.Run(PlanOf(sessions, step++, sessions.prompt, sessions.length(), way));
        // A generated row, and a chunk in the middle of the prompt and in two spans.
        ExpectCleanSteps(ranks, sessions, sessions.length() - 1, sessions.length(), way, step);
        ExpectCleanSteps(ranks, sessions, 94, 98, way, step);
      }
    }
  }
}

// Two ranks have segments of 1,024 positions: the generated row's tasks are cut.
TEST_P(ShardedAllocationTest, AGeneratedRowOfSeveralSegmentsAllocatesNothing) {
  const Sessions sessions{.count = 1, .prompt = 2200};
  AttentionCase model = MakeAttentionCase(GetParam(), kSpan);
  model.facts.sum = AttentionSum::kPerDegree;
  for (const Way way : {Way{AttentionMethod::kRingPassKv}, Way{AttentionMethod::kUlysses, 2}}) {
    Ranks ranks(model, 2);
    uint64_t step = 1;
    ranks.Run(PlanOf(sessions, step++, 0, sessions.prompt, way));
    ranks.Run(PlanOf(sessions, step++, sessions.prompt, sessions.length(), way));
    ExpectCleanSteps(ranks, sessions, sessions.length() - 1, sessions.length(), way, step);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ShardedAllocationTest, ::testing::Values("gqa", "mla"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace moebius
