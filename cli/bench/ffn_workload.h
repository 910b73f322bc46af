// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/base/executor.h"
#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/weight_rows.h"

namespace moebius {

/// One MoE layer's experts.
struct FfnShape {
  int64_t hidden_size = 2048;
  int64_t intermediate_size = 1024;
  int32_t num_experts = 64;
  int32_t top_k = 8;

  double FlopsPerRow() const {
    return 6.0 * static_cast<double>(hidden_size * intermediate_size * top_k);
  }
  int64_t ExpertBytes() const { return 3 * hidden_size * intermediate_size * 2; }
};

/// The packed experts of a layer, of normally distributed values, in bf16 or in FP8 with a scale
/// for each 128 × 128. Immutable.
class FfnWeights {
 public:
  FfnWeights(const FfnShape& shape, PairOrder order, WeightType type);

  const FfnShape& shape() const { return shape_; }
  const PackedExpert& expert(size_t index) const { return experts_[index]; }

 private:
  FfnShape shape_;
  std::vector<PackedExpert> experts_;
};

/// Rows that visit top_k different experts each, drawn anew for each of a few routings, so that no
/// routing finds its weights in a cache. Not thread-safe.
class FfnCalls {
 public:
  /// Borrows the weights.
  FfnCalls(const FfnWeights& weights, int64_t num_rows);

  /// Mean bytes of the distinct experts of a routing.
  double touched_bytes() const { return touched_bytes_; }
  /// Runs the next routing; on an executor thread.
  void Run(Executor& executor, const Kernels& kernels);

 private:
  struct Routing {
    std::vector<std::vector<int32_t>> rows_of;  // by expert
    std::vector<ExpertBatch> batches;
  };
  void AddRouting(const FfnWeights& weights, int64_t num_rows, uint64_t seed);

  RowBatch<Bf16> rows_;
  RowBatch<Bf16> outputs_;  // of all assignments
  std::vector<Routing> routings_;
  double touched_bytes_ = 0;
  size_t next_ = 0;
  ExpertScratch scratch_;
};

}  // namespace moebius
