// SPDX-License-Identifier: Apache-2.0
#include "expert_service/quanta.h"

namespace moebius {
namespace {

constexpr double kTarget = 0.8;
// Weight of the newest measurement: a rate moves with the clock and the neighbours.
constexpr double kNewest = 0.25;

}  // namespace

int64_t QuantumPlan::max_work() const {
  return static_cast<int64_t>(work_per_second_ * kTarget * absl::ToDoubleSeconds(kMaxQuantum));
}

void QuantumPlan::Cut(absl::Span<const ExpertBatch> batches) {
  batches_.clear();
  ends_.clear();
  int64_t last_work = 0;
  for (const ExpertBatch& batch : batches) {
    if (batch.row_indices.empty()) continue;
    const int64_t work = WorkOf(batch);
    if (ends_.empty() || last_work + work > max_work()) {
      ends_.push_back(batches_.size());
      last_work = 0;
    }
    batches_.push_back(batch);
    ends_.back() = batches_.size();
    last_work += work;
  }
}

absl::Span<const ExpertBatch> QuantumPlan::Quantum(size_t index) const {
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return absl::MakeConstSpan(batches_).subspan(begin, ends_[index] - begin);
}

void QuantumPlan::OnRun(int64_t work, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds <= 0) return;
  const double rate = static_cast<double>(work) / seconds;
  work_per_second_ += kNewest * (rate - work_per_second_);
}

}  // namespace moebius
