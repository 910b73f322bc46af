// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "attention_service/attention_pipeline.h"
#include "attention_service/attention_weights.h"
#include "attention_service/local_exchange.h"
#include "moebius/attention/attention_method.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// One layer of attention over random rows, shared by ranks of one process that all compute on one
/// executor, to be timed: what ranks cost beyond the work itself. Prompts go by ring pass-KV in
/// steps of so many rows. Not thread-safe; calls come from outside the executor.
class RankGroupProbe {
 public:
  /// `facts` as AttentionProbe takes them, and their sum. Room for prompts of `max_tokens`.
  static absl::StatusOr<std::unique_ptr<RankGroupProbe>> Make(const AttentionFacts& facts,
                                                              const Kernels& kernels,
                                                              Executor& executor, int32_t num_ranks,
                                                              int64_t max_tokens);

  /// Seconds of a prompt of so many tokens, planning included. What a rank fails with.
  absl::StatusOr<double> TimePrefill(int64_t num_tokens, int64_t step_rows);

 private:
  RankGroupProbe(const SpanGeometry& geometry, int32_t num_ranks, int64_t num_heads)
      : geometry_(geometry), exchange_(num_ranks, geometry, num_heads) {}
  absl::Status RunStep(const StepPlan& plan);

  const SpanGeometry geometry_;
  LocalExchange exchange_;
  struct Rank {
    std::unique_ptr<AttentionPipeline> pipeline;
    OwnedRows owned;
    RowBatch<Bf16> in, out;
    absl::Status status;
  };
  std::vector<Rank> ranks_;
  uint64_t step_ = 0;
};

}  // namespace moebius
