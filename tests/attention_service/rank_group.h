// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/attention_pipeline.h"
#include "moebius/base/executor.h"
#include "tests/attention_service/attention_fixture.h"

namespace moebius::testing {

/// N ranks in one process: a pipeline with an executor each, every step run by N threads.
class RankGroup {
 public:
  /// Borrows the exchanges, one for each rank; with none of them the group is one rank alone.
  /// `threads` of each rank; 0: one and two of them in turn.
  RankGroup(const AttentionCase& model, const std::vector<KvExchange*>& exchanges,
            int64_t tokens = 4096, int threads = 0);

  AttentionPipeline& rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)].pipeline; }
  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }

  /// Runs the plan on all ranks through `layers` layers, each of which is given `in`, and commits.
  /// `out` [plan rows, hidden]: of the last layer. On failure all abort; the statuses are per rank.
  std::vector<absl::Status> RunStep(const StepPlan& plan, Bf16Rows in, MutableBf16Rows out,
                                    int64_t layers = 1);
  void EndSession(SessionId session);

 private:
  struct Rank {
    std::unique_ptr<Executor> executor;
    std::unique_ptr<AttentionPipeline> pipeline;
  };
  absl::Status RunRank(int32_t rank, const StepPlan& plan, Bf16Rows in, MutableBf16Rows out,
                       int64_t layers);

  const AttentionCase& model_;
  std::vector<Rank> ranks_;
};

/// A session of a test: its rows, and where they stand.
struct TestSession {
  SessionId id;
  int32_t first_rank = 0;
  int64_t prompt_length = 0;
  AttentionMethod method = AttentionMethod::kRingPassKv;
  int32_t ulysses_ranks = 1;
  RowBatch<Bf16> rows;
  int64_t length = 0;  // rows that have run
  RowBatch<Bf16> out;  // of the rows that have run
};
TestSession MakeTestSession(uint64_t id, int64_t num_rows, int64_t prompt_length, int64_t width);

/// One step of each session's next rows (as many as chunks say, at most what is left). Fills `out`
/// of the sessions. All statuses must be OK.
void RunTestStep(RankGroup& group, const std::vector<TestSession*>& sessions,
                 const std::vector<int64_t>& chunks);

}  // namespace moebius::testing
