// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/ffn_workload.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/types/span.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

constexpr uint64_t kNumRoutings = 4;

RowBatch<Bf16> NormalRows(int64_t num_rows, int64_t width, uint64_t seed) {
  RowBatch<Bf16> rows(num_rows, width);
  Random random(seed);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (Bf16& value : rows.rows().span(r)) value = ToBf16(random.Normal());
  }
  return rows;
}

WeightMatrix NormalWeights(int64_t num_rows, int64_t width, uint64_t seed, WeightType type) {
  RowBatch<Bf16> values = NormalRows(num_rows, width, seed);
  if (type == WeightType::kBf16) return values;
  constexpr float kScale = 1.0f / 64;
  Fp8Rows blocks;
  blocks.block_rows = blocks.block_columns = 128;
  WeightMatrix matrix = WeightMatrix::MakeFp8(num_rows, width, blocks);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < width; ++k) {
      matrix.codes().row(r)[k] = ToFp8(ToFloat(values.rows().row(r)[k]) / kScale);
    }
  }
  for (int64_t r = 0; r < matrix.scales().num_rows; ++r) {
    for (float& scale : matrix.scales().span(r)) scale = kScale;
  }
  return matrix;
}

}  // namespace

FfnWeights::FfnWeights(const FfnShape& shape, PairOrder order, WeightType type) : shape_(shape) {
  // The same values in every expert: what a product costs does not depend on them.
  const int64_t width = shape.intermediate_size;
  const WeightMatrix gate = NormalWeights(width, shape.hidden_size, 1, type);
  const WeightMatrix up = NormalWeights(width, shape.hidden_size, 2, type);
  const WeightMatrix down = NormalWeights(shape.hidden_size, width, 3, type);
  experts_.reserve(static_cast<size_t>(shape.num_experts));
  for (int32_t expert = 0; expert < shape.num_experts; ++expert) {
    experts_.push_back(PackedExpert::Pack(gate.rows(), up.rows(), down.rows(), order));
  }
}

FfnCalls::FfnCalls(const FfnWeights& weights, int64_t num_rows)
    : rows_(NormalRows(num_rows, weights.shape().hidden_size, 4)),
      outputs_(num_rows * weights.shape().top_k, weights.shape().hidden_size) {
  routings_.reserve(kNumRoutings);
  for (uint64_t routing = 0; routing < kNumRoutings; ++routing) {
    AddRouting(weights, num_rows, routing);
  }
}

void FfnCalls::AddRouting(const FfnWeights& weights, int64_t num_rows, uint64_t seed) {
  const FfnShape& shape = weights.shape();
  const auto num_experts = static_cast<size_t>(shape.num_experts);
  Routing& routing = routings_.emplace_back();
  routing.rows_of.resize(num_experts);
  std::vector<size_t> experts(num_experts);
  std::iota(experts.begin(), experts.end(), 0);
  Random random(seed);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (size_t choice = 0; choice < static_cast<size_t>(shape.top_k); ++choice) {
      std::swap(experts[choice], experts[choice + random.Below(num_experts - choice)]);
      routing.rows_of[experts[choice]].push_back(static_cast<int32_t>(row));
    }
  }
  int64_t begin = 0;
  for (size_t expert = 0; expert < num_experts; ++expert) {
    const std::vector<int32_t>& rows = routing.rows_of[expert];
    if (rows.empty()) continue;
    const int64_t end = begin + static_cast<int64_t>(rows.size());
    routing.batches.push_back(
        ExpertBatch{&weights.expert(expert), rows, outputs_.rows().Slice(begin, end)});
    touched_bytes_ += static_cast<double>(weights.expert(expert).bytes()) / kNumRoutings;
    begin = end;
  }
}

void FfnCalls::Run(Executor& executor, const Kernels& kernels) {
  const Routing& routing = routings_[next_];
  next_ = (next_ + 1) % routings_.size();
  ForwardExperts(executor, kernels, routing.batches, rows_.rows(), scratch_);
}

}  // namespace moebius
