// SPDX-License-Identifier: Apache-2.0
#include "expert_service/quanta.h"

#include <algorithm>

namespace moebius {
namespace {

// Rows up to which a call waits for weights rather than for arithmetic: the ratio of the two rates
// of a CPU with bf16 products, and more than that of one without.
constexpr int64_t kRowsPerRead = 8;
constexpr double kTarget = 0.8;
// Weight of the newest measurement: a rate moves with the clock and the neighbours.
constexpr double kNewest = 0.25;

int64_t WorkOfRows(const ExpertBatch& batch, int64_t num_rows) {
  const int64_t elements = 3 * batch.weights->hidden_size() * batch.weights->intermediate_size();
  return elements * std::max(num_rows, kRowsPerRead);
}

}  // namespace

int64_t QuantumPlan::WorkOf(const ExpertBatch& batch) {
  return WorkOfRows(batch, static_cast<int64_t>(batch.row_indices.size()));
}

int64_t QuantumPlan::max_work() const {
  return static_cast<int64_t>(work_per_second_ * kTarget * absl::ToDoubleSeconds(kMaxQuantum));
}

void QuantumPlan::Add(const ExpertBatch& batch, int64_t work) {
  if (ends_.empty() || work_.back() + work > max_work()) {
    ends_.push_back(parts_.size());
    work_.push_back(0);
  }
  parts_.push_back(batch);
  ends_.back() = parts_.size();
  work_.back() += work;
}

void QuantumPlan::Cut(absl::Span<const ExpertBatch> batches) {
  parts_.clear();
  ends_.clear();
  work_.clear();
  for (const ExpertBatch& batch : batches) {
    const auto num_rows = static_cast<int64_t>(batch.row_indices.size());
    if (num_rows == 0) continue;
    const int64_t rows_per_part =
        std::max(kMinRows, max_work() / std::max<int64_t>(1, WorkOfRows(batch, 1) / kRowsPerRead));
    for (int64_t begin = 0; begin < num_rows; begin += rows_per_part) {
      const int64_t end = std::min(begin + rows_per_part, num_rows);
      ExpertBatch part = batch;
      part.row_indices =
          batch.row_indices.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      part.out = batch.out.Slice(begin, end);
      Add(part, WorkOf(part));
    }
  }
}

absl::Span<const ExpertBatch> QuantumPlan::Quantum(size_t index) const {
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return absl::MakeConstSpan(parts_).subspan(begin, ends_[index] - begin);
}

void QuantumPlan::OnRun(size_t index, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds <= 0) return;
  const double rate = static_cast<double>(work_[index]) / seconds;
  work_per_second_ += kNewest * (rate - work_per_second_);
}

}  // namespace moebius
